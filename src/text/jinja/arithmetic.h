// Python's operators on template values.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "text/jinja/ast.h"

namespace hone::jinja {

// Text to numbers and rounding, as Python's int(), float() and round() do.

/// int(text, base): accepts white space around, a sign, digits with single underscores, a prefix for the base.
std::optional<int64_t> parse_int(std::string_view text, int64_t base);

/// float(text).
std::optional<double> parse_float(std::string_view text);

/// The integer part; throws TemplateError if it does not fit 64 bits.
int64_t truncated(double value);

/// round(value, precision): half to even on the exact binary value.
double rounded(double value, int precision);

class Interpreter;

/// left op right for + - * / // % **. Throws for integers that do not fit 64 bits and for wrong types.
Value arithmetic(Interpreter& interpreter, Operator op, const Value& left, const Value& right);

/// -value
Value negated(const Value& value);

/// item in container
bool contains(Interpreter& interpreter, const Value& container, const Value& item);

/// object[start:stop:step]; absent parts are null
Value sliced(Interpreter& interpreter, const Value& object, const Value* start, const Value* stop, const Value* step);

}  // namespace hone::jinja
