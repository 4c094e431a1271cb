#include "data/readers/split_slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/base/error.h"

namespace hone {

namespace {

constexpr size_t kMostDigits = 15;

[[noreturn]] void refuse(const std::string& text, const char* what) {
  throw UserError(
      fmt::format("the split '{}' {}", text, what), "split",
      "write train[:100] for the first 100 rows, train[100:200], train[-50:] for the last 50, or train[:20%]");
}

/// One end of a slice, such as 20, -5, 1_000 or 20%; nothing where it is empty.
std::optional<int64_t> read_end(const std::string& text, std::string_view part, bool& percent) {
  std::string digits(part);
  percent = digits.ends_with('%');
  if (percent) digits.pop_back();
  std::erase(digits, '_');
  const bool negative = digits.starts_with('-');
  if (negative) digits.erase(0, 1);
  if (digits.empty() && part.empty()) return std::nullopt;
  const bool number = !digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos;
  if (!number || digits.size() > kMostDigits) refuse(text, "is not a name with a slice of its rows");
  const int64_t value = std::stoll(digits);
  if (percent && value > 100) refuse(text, "asks for more than 100 %");
  return negative ? -value : value;
}

}  // namespace

bool SplitSlice::needs_count() const { return sliced && (percent || from.value_or(0) < 0 || to.value_or(0) < 0); }

RowRange SplitSlice::range(int64_t total) const {
  const auto rows = [&](int64_t end) {
    const int64_t at = percent ? std::llrint(static_cast<double>(end * total) / 100.0) : end;
    return std::clamp<int64_t>(at < 0 ? total + at : at, 0, total);
  };
  return {from ? rows(*from) : 0, to ? rows(*to) : total};
}

SplitSlice parse_split(const std::string& text) {
  const size_t bracket = text.find('[');
  if (bracket == std::string::npos) return {.name = text};
  if (bracket == 0 || !text.ends_with(']')) refuse(text, "is not a name with a slice of its rows");
  const std::string_view inside = std::string_view(text).substr(bracket + 1, text.size() - bracket - 2);
  const size_t colon = inside.find(':');
  if (colon == std::string_view::npos) refuse(text, "is not a name with a slice of its rows");
  SplitSlice slice{.name = text.substr(0, bracket), .sliced = true};
  bool from_percent = false, to_percent = false;
  slice.from = read_end(text, inside.substr(0, colon), from_percent);
  slice.to = read_end(text, inside.substr(colon + 1), to_percent);
  if (slice.from && slice.to && from_percent != to_percent) refuse(text, "mixes rows and percent");
  slice.percent = from_percent || to_percent;
  return slice;
}

}  // namespace hone
