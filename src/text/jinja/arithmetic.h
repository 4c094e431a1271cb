// Python's operators on template values.
#pragma once

#include "text/jinja/ast.h"

namespace hone::jinja {

class Interpreter;

/// left op right for + - * / // % **. Integers that leave 64 bits, and types that do not fit, are errors.
Value arithmetic(Interpreter& interpreter, Operator op, const Value& left, const Value& right);

/// -value
Value negated(const Value& value);

/// item in container
bool contains(Interpreter& interpreter, const Value& container, const Value& item);

/// object[start:stop:step]; absent parts are null
Value sliced(Interpreter& interpreter, const Value& object, const Value* start, const Value* stop, const Value* step);

}  // namespace hone::jinja
