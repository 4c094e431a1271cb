#include "report/humanise.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <span>

namespace hone {
namespace {

std::string nonfinite_text(double value) {
  if (std::isnan(value)) return "NaN";
  return value > 0 ? "Inf" : "-Inf";
}

// At most three significant digits and one decimal; uses the next suffix when rounding reaches 1000.
std::string scaled(double value, std::span<const char* const> suffixes) {
  if (!std::isfinite(value)) return nonfinite_text(value);
  size_t unit = 0;
  while (std::abs(value) >= (unit == 0 ? 1000.0 : 999.5) && unit + 1 < suffixes.size()) {
    value /= 1000.0;
    ++unit;
  }
  const bool whole = std::abs(value) >= 99.95 || (unit == 0 && value == std::floor(value));
  return fmt::format("{:.{}f}{}", value, whole ? 0 : 1, suffixes[unit]);
}

}  // namespace

std::string human_bytes(double bytes) {
  static constexpr std::array kSuffixes = {" B", " kB", " MB", " GB", " TB", " PB"};
  return scaled(std::isfinite(bytes) ? std::round(bytes) : bytes, kSuffixes);
}

std::string human_count(double count) {
  static constexpr std::array kSuffixes = {"", "k", "M", "B", "T"};
  return scaled(count, kSuffixes);
}

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds < 0) seconds = 0;
  if (seconds < 9.95) return fmt::format("{:.1f}s", seconds);
  // A duration over some thousand years comes from a wrong clock.
  if (seconds > 1e11) return "-";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
  return fmt::format("{}d{:02}h", whole / 86400, whole % 86400 / 3600);
}

std::string with_commas(int64_t value) {
  std::string digits = std::to_string(value);
  const ptrdiff_t first = value < 0 ? 1 : 0;
  for (ptrdiff_t at = static_cast<ptrdiff_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

std::string fixed_number(double value, int decimals) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, decimals) : nonfinite_text(value);
}

std::string exact_number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : nonfinite_text(value);
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return nonfinite_text(value);
  if (value == 0) return "0";
  const double magnitude = std::abs(value);
  if (magnitude >= 0.001 && magnitude < 9999.5) {
    const int decimals = magnitude < 0.9995  ? (magnitude < 0.09995 ? (magnitude < 0.009995 ? 5 : 4) : 3)
                         : magnitude < 9.995 ? 2
                         : magnitude < 99.95 ? 1
                                             : 0;
    return fmt::format("{:.{}f}", value, decimals);
  }
  // A two-digit exponent replaces the second decimal.
  std::string text = fmt::format("{:.{}e}", value, magnitude < 1e-9 || magnitude >= 1e10 ? 1 : 2);
  // 9.85e-05 -> 9.85e-5: removes the leading zero of the exponent.
  const size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  return text.substr(0, e + 1) + std::to_string(exponent);
}

}  // namespace hone
