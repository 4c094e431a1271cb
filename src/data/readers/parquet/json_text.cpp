#include "data/readers/parquet/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <iterator>

#include "core/text/json.h"
#include "data/readers/parquet/bytes.h"
#include "text/utf8.h"

namespace hone::parquet {

namespace {

/// Whether one of eight characters is not ASCII, a control character, a quote or a backslash.
bool has_special(uint64_t eight) {
  constexpr uint64_t kOnes = 0x0101010101010101, kHigh = 0x80 * kOnes;
  const auto zeros = [](uint64_t x) { return (x - kOnes) & ~x; };  // with its high bit set where a byte is 0
  const uint64_t below_space = eight - 0x20 * kOnes;
  return ((eight | below_space | zeros(eight ^ ('"' * kOnes)) | zeros(eight ^ ('\\' * kOnes))) & kHigh) != 0;
}

void append_escaped(std::string& out, unsigned char character) {
  constexpr std::string_view kShort = "\b\f\n\r\t\"\\", kLetters = "bfnrt\"\\";
  const size_t found = kShort.find(static_cast<char>(character));
  if (found != std::string_view::npos) {
    out += '\\';
    out += kLetters[found];
  } else {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", character);
  }
}

template <class Integer>
void append_integer(std::string& out, Integer value) {
  char digits[24];
  out.append(digits, std::to_chars(digits, std::end(digits), value).ptr);
}

void append_double(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += kJsonNull;
    return;
  }
  char digits[64];
  out.append(digits, nlohmann::detail::to_chars(digits, std::end(digits), value));  // as Json::dump() writes it
}

int64_t units_per_second(TimeUnit unit) {
  constexpr int64_t kUnits[] = {1, 1000, 1000000, 1000000000};
  return kUnits[static_cast<int>(unit)];
}
int fraction_digits(TimeUnit unit) { return 3 * static_cast<int>(unit); }

void append_out_of_range(std::string& out, int64_t value) {
  fmt::format_to(std::back_inserter(out), "\"<value out of range: {}>\"", value);
}

/// Appends year, month and day, for years of at most five digits; false for others.
bool append_date(std::string& out, int64_t days) {
  using namespace std::chrono;
  constexpr int64_t kFirst = sys_days(year(-32767) / 1 / 1).time_since_epoch().count();
  constexpr int64_t kLast = sys_days(year(32767) / 12 / 31).time_since_epoch().count();
  if (days < kFirst || days > kLast) return false;
  const year_month_day date(sys_days(std::chrono::days(static_cast<int>(days))));
  const int number = static_cast<int>(date.year());
  fmt::format_to(std::back_inserter(out), "{}{:04}-{:02}-{:02}", number < 0 ? "-" : "", std::abs(number),
                 static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
  return true;
}

void append_clock(std::string& out, int64_t units, TimeUnit unit) {
  const int64_t per_second = units_per_second(unit), seconds = units / per_second;
  fmt::format_to(std::back_inserter(out), "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
  if (per_second > 1) {
    fmt::format_to(std::back_inserter(out), ".{:0{}}", units % per_second, fraction_digits(unit));
  }
}

/// Appends a timestamp of `days` and `units` of the day; false if the year is out of range.
bool append_moment(std::string& out, int64_t days, int64_t units, TimeUnit unit, bool utc) {
  const size_t begin = out.size();
  out += '"';
  if (!append_date(out, days)) {
    out.resize(begin);
    return false;
  }
  out += ' ';
  append_clock(out, units, unit);
  out += utc ? "Z\"" : "\"";
  return true;
}

void append_timestamp(std::string& out, int64_t value, const Leaf& leaf) {
  const int64_t per_day = 86400 * units_per_second(leaf.unit);
  const int64_t units = (value % per_day + per_day) % per_day;
  const int64_t days = value / per_day - (value % per_day < 0 ? 1 : 0);
  if (!append_moment(out, days, units, leaf.unit, leaf.utc)) append_out_of_range(out, value);
}

void append_time(std::string& out, int64_t value, const Leaf& leaf) {
  if (value < 0 || value >= 86400 * units_per_second(leaf.unit)) return append_out_of_range(out, value);
  out += '"';
  append_clock(out, value, leaf.unit);
  out += '"';
}

void append_day(std::string& out, int64_t days) {
  const size_t begin = out.size();
  out += '"';
  if (append_date(out, days)) {
    out += '"';
  } else {
    out.resize(begin);
    append_out_of_range(out, days);
  }
}

/// 8 bytes of nanoseconds of the day, 4 of the Julian day.
void append_int96(std::string& out, std::string_view value) {
  constexpr int64_t kJulianDayOf1970 = 2440588, kNanosPerDay = 86400 * int64_t{1000000000};
  const auto* bytes = reinterpret_cast<const uint8_t*>(value.data());
  const auto nanos = little_endian<int64_t>(bytes);
  const int64_t day = little_endian<uint32_t>(bytes + 8) - kJulianDayOf1970;
  const int64_t rest = (nanos % kNanosPerDay + kNanosPerDay) % kNanosPerDay;
  const int64_t days = day + (nanos - rest) / kNanosPerDay;
  if (!append_moment(out, days, rest, TimeUnit::kNano, false)) append_out_of_range(out, days);
}

/// The double of a 16-bit floating-point number, as text with the fewest digits that tell it from others.
void append_half(std::string& out, std::string_view value) {
  const auto bits = little_endian<uint16_t>(reinterpret_cast<const uint8_t*>(value.data()));
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double number = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (bits & 0x8000) number = -number;
  out += '"';
  char digits[64];
  if (exponent == 31) {
    out += fraction != 0 ? "nan" : bits & 0x8000 ? "-inf" : "inf";
  } else if (number != 0 && std::abs(number) < 1e-5) {
    // No zero in front of the exponent: 6e-8, where to_chars writes 6e-08.
    std::string text(digits, std::to_chars(digits, std::end(digits), number, std::chars_format::scientific).ptr);
    const size_t zero = text.find("e-0");
    if (zero != std::string::npos) text.erase(zero + 2, 1);
    out += text;
  } else {
    out.append(digits, std::to_chars(digits, std::end(digits), number, std::chars_format::fixed).ptr);
  }
  out += '"';
}

/// The digits of a big-endian integer in two's complement.
std::string decimal_digits(std::string_view value, bool& negative) {
  constexpr size_t kMostBytes = 32;
  constexpr uint64_t kStep = 1000000000;  // nine digits at a time
  if (value.empty() || value.size() > kMostBytes) {
    fault("a decimal has {} bytes; 1 to {} are expected", value.size(), kMostBytes);
  }
  negative = (static_cast<uint8_t>(value[0]) & 0x80) != 0;
  uint32_t words[kMostBytes / 4] = {};  // the most significant one first
  const auto byte = [&](size_t from_end) {
    const uint8_t raw = from_end < value.size() ? static_cast<uint8_t>(value[value.size() - 1 - from_end]) : 0;
    return from_end < value.size() && negative ? static_cast<uint8_t>(~raw) : raw;
  };
  for (size_t i = 0; i < kMostBytes; ++i) words[7 - i / 4] |= static_cast<uint32_t>(byte(i)) << (8 * (i % 4));
  for (int i = 7; negative && i >= 0 && ++words[i] == 0; --i) {
  }
  std::string digits;
  for (bool left = true; left;) {
    uint64_t rest = 0;
    left = false;
    for (uint32_t& word : words) {
      const uint64_t part = rest << 32 | word;
      word = static_cast<uint32_t>(part / kStep);
      rest = part % kStep;
      left = left || word != 0;
    }
    for (int i = 0; i < 9; ++i, rest /= 10) digits += static_cast<char>('0' + rest % 10);
  }
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  std::reverse(digits.begin(), digits.end());
  return digits;
}

/// Small ones with an exponent, as most libraries of decimals write them: 1.2E-9.
void append_decimal(std::string& out, std::string_view value, int scale) {
  bool negative = false;
  std::string digits = decimal_digits(value, negative);
  const int count = static_cast<int>(digits.size()), exponent = count - 1 - scale;
  if (scale > 0 && exponent < -6) {
    if (count > 1) digits.insert(1, ".");
    digits += fmt::format("E{}", exponent);
  } else if (scale > 0) {
    if (count <= scale) digits.insert(0, static_cast<size_t>(scale - count + 1), '0');
    digits.insert(digits.size() - static_cast<size_t>(scale), ".");
  }
  out += '"';
  if (negative) out += '-';
  out += digits;
  out += '"';
}

/// An integer of `bits` bits: what is above them is dropped.
int64_t narrowed(uint64_t value, int bits) {
  const int shift = 64 - bits;
  return static_cast<int64_t>(value << shift) >> shift;
}

}  // namespace

void append_json_text(std::string& out, std::string_view text) {
  out += '"';
  size_t plain = 0;  // first character that was not appended
  const size_t size = text.size();
  for (size_t at = 0; at < size;) {
    while (size - at >= 8 && !has_special(little_endian<uint64_t>(reinterpret_cast<const uint8_t*>(&text[at])))) {
      at += 8;
    }
    // One special character in the next eight, and the others before it; or the last few.
    for (const size_t end = std::min(size, at + 8); at < end;) {
      const auto character = static_cast<unsigned char>(text[at]);
      if (character >= 0x80) {
        const Utf8Step step = utf8_step(text, at);
        if (!step.valid) fault("byte {} of a text is not UTF-8", at + 1);
        at += step.length;
      } else if (character < 0x20 || character == '"' || character == '\\') {
        out.append(text.substr(plain, at - plain));
        append_escaped(out, character);
        plain = ++at;
      } else {
        ++at;
      }
    }
  }
  out.append(text.substr(plain));
  out += '"';
}

void append_number(std::string& out, uint64_t bits, const Leaf& leaf) {
  const auto whole = static_cast<int64_t>(bits);
  switch (leaf.form) {
    case ValueForm::kBoolean:
      out += bits != 0 ? "true" : "false";
      break;
    case ValueForm::kSigned:
      append_integer(out, narrowed(bits, leaf.bits));
      break;
    case ValueForm::kUnsigned:
      append_integer(out, bits << (64 - leaf.bits) >> (64 - leaf.bits));
      break;
    case ValueForm::kFloat:
      append_double(out, static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits))));
      break;
    case ValueForm::kDouble:
      append_double(out, std::bit_cast<double>(bits));
      break;
    case ValueForm::kDate:
      append_day(out, whole);
      break;
    case ValueForm::kTime:
      append_time(out, whole, leaf);
      break;
    case ValueForm::kTimestamp:
      append_timestamp(out, whole, leaf);
      break;
    case ValueForm::kDuration:
      out += '"';
      append_integer(out, whole);
      out += '"';
      break;
    case ValueForm::kDecimal: {
      char big_endian[8];
      for (int i = 0; i < 8; ++i) big_endian[i] = static_cast<char>(bits >> (8 * (7 - i)));
      append_decimal(out, {big_endian, sizeof big_endian}, leaf.scale);
      break;
    }
    case ValueForm::kHalf:
    case ValueForm::kText:
    case ValueForm::kInt96:
    case ValueForm::kNothing:
      out += kJsonNull;
      break;
  }
}

void append_bytes(std::string& out, std::string_view value, const Leaf& leaf) {
  switch (leaf.form) {
    case ValueForm::kText:
      append_json_text(out, value);
      break;
    case ValueForm::kDecimal:
      append_decimal(out, value, leaf.scale);
      break;
    case ValueForm::kHalf:
      append_half(out, value);
      break;
    case ValueForm::kInt96:
      append_int96(out, value);
      break;
    default:
      out += kJsonNull;
      break;
  }
}

}  // namespace hone::parquet
