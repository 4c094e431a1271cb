// Encodings by differences: of integers, of the lengths of texts, and of texts with the beginning of the one before.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/readers/parquet/bit_runs.h"
#include "data/readers/parquet/bytes.h"

namespace hone::parquet {

/// DELTA_BINARY_PACKED: blocks of differences, each less the smallest of its block and packed. Sums wrap at 64 bits.
class Deltas {
 public:
  Deltas() = default;
  /// Throws ParquetFault if the header is damaged.
  explicit Deltas(Bytes bytes);

  /// Reads the next integer; throws ParquetFault if there is none.
  int64_t next() {
    if (read_ == total_) ends_early();
    if (read_++ == 0) return static_cast<int64_t>(value_);
    if (in_miniblock_ == 0) next_miniblock();
    --in_miniblock_;
    value_ += least_ + bits_.next();
    return static_cast<int64_t>(value_);
  }
  /// Number of all integers.
  uint64_t total() const { return total_; }
  /// What follows the last integer. Only before the first one was read.
  Bytes after() const;

 private:
  [[noreturn]] static void ends_early();
  void next_miniblock();
  void next_block();

  ByteCursor in_{{}};
  uint64_t block_ = 0, miniblocks_ = 0, total_ = 0;  // what the header says
  uint64_t value_ = 0, least_ = 0, read_ = 0;
  uint64_t in_miniblock_ = 0;  // integers left in it
  Bytes widths_;               // for the miniblocks left in the block
  PackedBits bits_;
};

/// DELTA_LENGTH_BYTE_ARRAY: all lengths, then all bytes.
class LengthTexts {
 public:
  LengthTexts() = default;
  explicit LengthTexts(Bytes bytes) : lengths_(bytes), in_(lengths_.after()) {}

  /// The next text, whose bytes are those of the page. Throws ParquetFault if there is none.
  std::string_view next();

 private:
  Deltas lengths_;
  ByteCursor in_{{}};
};

/// DELTA_BYTE_ARRAY: how many bytes of the text before begin the next one, and the rest of it.
class PrefixTexts {
 public:
  PrefixTexts() = default;
  explicit PrefixTexts(Bytes bytes) : prefixes_(bytes), rests_(prefixes_.after()) {}

  /// Replaces `text`, which must hold the text before, by the next one. Throws ParquetFault if there is none.
  void next(std::string& text);

 private:
  Deltas prefixes_;
  LengthTexts rests_;
};

}  // namespace hone::parquet
