// Text to numbers and rounding, as Python's int(), float() and round() do.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace hone::jinja {

/// int(text, base): blanks around, a sign, digits with single underscores, a prefix that fits the base.
std::optional<int64_t> parse_int(std::string_view text, int64_t base);

/// float(text).
std::optional<double> parse_float(std::string_view text);

/// The integer part; outside of 64 bits it is a TemplateError.
int64_t truncated(double value);

/// round(value, precision): half to even on the exact binary value.
double rounded(double value, int precision);

}  // namespace hone::jinja
