// Integers of a few bits each: packed, and in the runs that hold levels, booleans and indices of dictionaries.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "data/readers/parquet/bytes.h"

namespace hone::parquet {

static_assert(std::endian::native == std::endian::little, "packed integers are read as words");

/// Reads integers of `width` <= 64 bits that are packed from the least significant bit on.
class PackedBits {
 public:
  PackedBits() = default;
  PackedBits(Bytes bytes, int width)
      : bytes_(bytes), width_(width), mask_(width == 0 ? 0 : ~uint64_t{0} >> (64 - width)) {}

  /// The next integer; bits after the last byte are zeros.
  uint64_t next() {
    const size_t byte = static_cast<size_t>(at_ >> 3);
    const int shift = static_cast<int>(at_ & 7);
    at_ += static_cast<uint64_t>(width_);
    uint64_t value = word(byte) >> shift;
    if (shift + width_ > 64) value |= word(byte + 8) << (64 - shift);
    return value & mask_;
  }

 private:
  uint64_t word(size_t byte) const {
    if (byte + 8 <= bytes_.size()) return little_endian<uint64_t>(&bytes_[byte]);
    uint64_t value = 0;
    if (byte < bytes_.size()) std::memcpy(&value, &bytes_[byte], bytes_.size() - byte);
    return value;
  }

  Bytes bytes_;
  int width_ = 0;
  uint64_t mask_ = 0, at_ = 0;  // in bits
};

/// Runs of one value, and of packed integers (RLE of the format's definition).
class BitRuns {
 public:
  BitRuns() = default;
  /// `width`: bits of an integer, at most 32; throws ParquetFault for more.
  BitRuns(Bytes bytes, int width);

  /// Reads `count` integers. Throws ParquetFault if there are fewer.
  template <class Value>
  void read(Value* out, size_t count) {
    while (count > 0) {
      if (left_ == 0) next_run();
      const size_t now = static_cast<size_t>(left_ < count ? left_ : count);
      if (packed_) {
        for (size_t i = 0; i < now; ++i) out[i] = static_cast<Value>(bits_.next());
      } else {
        for (size_t i = 0; i < now; ++i) out[i] = static_cast<Value>(value_);
      }
      out += now;
      count -= now;
      left_ -= now;
    }
  }

 private:
  void next_run();

  ByteCursor in_{{}};
  int width_ = 0;
  uint64_t left_ = 0;  // values left in the run
  bool packed_ = false;
  uint64_t value_ = 0;
  PackedBits bits_;
};

/// Levels as old files pack them: from the most significant bit on, without runs.
class OldLevels {
 public:
  OldLevels() = default;
  /// Takes the bytes of `count` levels from `in`; throws ParquetFault if there are fewer.
  OldLevels(ByteCursor& in, uint64_t count, int width) : bytes_(in.take((count * width + 7) / 8)), width_(width) {}

  void read(uint8_t* out, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      uint8_t value = 0;
      for (int bit = 0; bit < width_; ++bit, ++at_)
        value = static_cast<uint8_t>(value << 1 | (bytes_[at_ >> 3] >> (7 - at_ % 8) & 1));
      out[i] = value;
    }
  }

 private:
  Bytes bytes_;
  int width_ = 0;
  uint64_t at_ = 0;  // in bits
};

}  // namespace hone::parquet
