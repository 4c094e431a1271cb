// Bounded reading of a Parquet file's bytes, and the error of a file that is damaged.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

namespace hone::parquet {

/// What is wrong with a file. The reader adds its name, and the row.
class ParquetFault : public std::runtime_error {
 public:
  /// `fix`: what to change, if it is not the usual of damaged files.
  explicit ParquetFault(const std::string& what, std::string fix = {})
      : std::runtime_error(what), fix_(std::move(fix)) {}

  const std::string& fix() const { return fix_; }

 private:
  std::string fix_;
};

inline constexpr const char* kWithoutEncryption = "write it without encryption";
inline constexpr const char* kWithSmallerPages =
    "write it with smaller pages (in Python: pyarrow.parquet.write_table with a smaller write_batch_size)";

template <class... Arguments>
[[noreturn]] void fault(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  throw ParquetFault(fmt::format(text, std::forward<Arguments>(arguments)...));
}

using Bytes = std::span<const uint8_t>;

/// A little-endian value of the type, from bytes that are there.
template <class Value>
Value little_endian(const uint8_t* bytes) {
  Value value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

/// Reads bytes from the front. Every call throws ParquetFault if they end early.
class ByteCursor {
 public:
  explicit ByteCursor(Bytes bytes) : bytes_(bytes) {}

  size_t left() const { return bytes_.size(); }
  Bytes rest() const { return bytes_; }

  Bytes take(uint64_t count) {
    if (count > bytes_.size()) ends_early();
    const Bytes taken = bytes_.first(static_cast<size_t>(count));
    bytes_ = bytes_.subspan(static_cast<size_t>(count));
    return taken;
  }
  uint8_t byte() { return take(1)[0]; }
  uint32_t word() { return little_endian<uint32_t>(take(4).data()); }

  /// An unsigned LEB128 integer; throws ParquetFault for more than 64 bits.
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t next = byte();
      value |= static_cast<uint64_t>(next & 0x7f) << shift;
      if (next < 0x80) return value;
    }
    fault("an integer is longer than 64 bits");
  }
  /// A signed one: 0, -1, 1, -2, … are written as 0, 1, 2, 3, …
  int64_t zigzag() {
    const uint64_t value = varint();
    return static_cast<int64_t>((value >> 1) ^ (0 - (value & 1)));
  }

 private:
  [[noreturn]] static void ends_early() { fault("the data end too early"); }

  Bytes bytes_;
};

}  // namespace hone::parquet
