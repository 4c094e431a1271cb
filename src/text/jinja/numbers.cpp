#include "text/jinja/numbers.h"

#include <charconv>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "text/jinja/characters.h"
#include "text/jinja/value.h"

namespace hone::jinja {

namespace {

/// `text` without blanks around it and underscores between digits; nothing if an underscore is misplaced.
std::optional<std::string> plain_digits(std::string_view text) {
  const Trimmed kept = trim(text, nullptr, true, true);
  std::string digits;
  for (size_t i = kept.begin; i < kept.end; ++i) {
    if (text[i] != '_') {
      digits += text[i];
      continue;
    }
    const auto alphanumeric = [&](size_t p) {
      return p >= kept.begin && p < kept.end && std::isalnum(static_cast<unsigned char>(text[p]));
    };
    if (i == 0 || !alphanumeric(i - 1) || !alphanumeric(i + 1)) return std::nullopt;
  }
  return digits;
}

}  // namespace

std::optional<int64_t> parse_int(std::string_view text, int64_t base) {
  const auto plain = plain_digits(text);
  if (!plain || base < 2 || base > 36) return std::nullopt;
  std::string_view digits = *plain;
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  const auto has_prefix = [&](char letter) {
    return digits.size() > 2 && digits[0] == '0' && (digits[1] | 0x20) == letter;
  };
  if ((base == 16 && has_prefix('x')) || (base == 8 && has_prefix('o')) || (base == 2 && has_prefix('b'))) {
    digits.remove_prefix(2);
  }
  int64_t value = 0;
  if (digits.empty() || digits[0] == '-') return std::nullopt;
  const std::string signed_digits = (negative ? "-" : "") + std::string(digits);
  const char* end = signed_digits.data() + signed_digits.size();
  const auto result = std::from_chars(signed_digits.data(), end, value, static_cast<int>(base));
  if (result.ptr != end) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) throw TemplateError("an integer leaves 64 bits");
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  const auto plain = plain_digits(text);
  if (!plain) return std::nullopt;
  std::string_view digits = *plain;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  if (digits.empty() || digits[0] == '+' || (plain->starts_with('+') && digits[0] == '-')) return std::nullopt;
  double value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (result.ptr != digits.data() + digits.size() || digits.find('(') != std::string_view::npos) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) return std::strtod(std::string(digits).c_str(), nullptr);
  return value;
}

int64_t truncated(double value) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (!(value > -kLimit && value < kLimit)) throw TemplateError("an integer leaves 64 bits");
  return static_cast<int64_t>(value);
}

double rounded(double value, int precision) {
  if (!std::isfinite(value)) return value;
  if (precision < 0) {
    const double scale = std::pow(10.0, -precision);
    return std::nearbyint(value / scale) * scale;
  }
  return std::strtod(fmt::format("{:.{}f}", value, precision).c_str(), nullptr);
}

}  // namespace hone::jinja
