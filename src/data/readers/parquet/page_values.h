// The values of one page, whatever their encoding.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/readers/parquet/bit_runs.h"
#include "data/readers/parquet/bytes.h"
#include "data/readers/parquet/deltas.h"
#include "data/readers/parquet/format.h"
#include "data/readers/parquet/row_plan.h"

namespace hone::parquet {

/// Values of a column, without nulls: numbers (append_number says of which bits) or bytes.
struct Values {
  std::vector<uint64_t> numbers;
  std::vector<std::string_view> texts;
  std::vector<std::string> own;  ///< bytes that no page has as they are

  size_t size() const { return numbers.size() + texts.size(); }
};

/// Whether values of the type are bytes, not numbers.
bool holds_bytes(Physical physical);

class PageValues {
 public:
  PageValues() = default;
  /// `dictionary`: the values that indices stand for, or null; it and `bytes` must outlive this. Throws ParquetFault
  /// for an encoding that the type cannot have, and damaged data.
  PageValues(const Leaf& leaf, Encoding encoding, Bytes bytes, const Values* dictionary);

  /// Replaces `values` by the next `count`. Throws ParquetFault if there are fewer, and for an index that the
  /// dictionary does not have.
  void read(size_t count, Values& values);

 private:
  void read_numbers(size_t count, std::vector<uint64_t>& numbers);
  void read_texts(size_t count, Values& values);
  void look_up(size_t count, Values& values);
  void gather(size_t count, Values& values);

  Physical physical_ = Physical::kBoolean;
  Encoding encoding_ = Encoding::kPlain;
  size_t width_ = 0;  // bytes of a value, if all have the same
  ByteCursor in_{{}};
  PackedBits bits_;
  uint64_t bits_left_ = 0;
  BitRuns runs_;
  Deltas deltas_;
  LengthTexts length_texts_;
  PrefixTexts prefix_texts_;
  std::string last_text_;
  size_t streams_at_ = 0;  // kByteStreamSplit: values read
  const Values* dictionary_ = nullptr;
  std::vector<uint32_t> indices_;
};

}  // namespace hone::parquet
