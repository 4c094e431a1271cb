// Reads the levels and values of one column of a row group, page by page.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/files/file_bytes.h"
#include "data/readers/parquet/page_header.h"
#include "data/readers/parquet/page_memory.h"
#include "data/readers/parquet/page_values.h"
#include "data/readers/parquet/row_plan.h"

namespace hone::parquet {

/// The levels of a page, whatever their encoding.
class PageLevels {
 public:
  PageLevels() = default;
  /// Levels of a page of version 2.
  PageLevels(Bytes bytes, int deepest);
  /// Takes the `count` levels of a page of version 1 from `in`. Throws ParquetFault for an unknown encoding.
  PageLevels(ByteCursor& in, Encoding encoding, uint64_t count, int deepest);

  /// Reads `count` levels. Throws ParquetFault if there are fewer, or if one is too deep.
  void read(uint8_t* out, size_t count);

 private:
  int deepest_ = 0;  // 0: all levels are 0, and no byte is written for them
  bool old_ = false;
  BitRuns runs_;
  OldLevels old_levels_;
};

/// Throws ParquetFault, which names the column, for a chunk that is encrypted, in another file or of another type, and
/// for unknown codecs.
void check_chunk(const Leaf& leaf, const ColumnChunk& chunk);

/// An entry is a value, or a null or empty list around it, with its levels (RowNode). Entries come in batches, and one
/// page is in memory, with the dictionary. Calls throw ParquetFault, which names the column, for damaged pages.
class ColumnReader {
 public:
  /// `file`, `leaf` and `memory` must outlive this. `packed` holds a page before it is decompressed; columns share it.
  /// check_chunk must hold for the chunk.
  ColumnReader(const FileBytes& file, uint64_t data_end, const Leaf& leaf, const ColumnChunk& chunk, PageMemory& memory,
               PageBuffer& packed);

  /// The definition level of the next entry. Throws ParquetFault if there is none.
  int definition() {
    if (at_ == count_) require_more();
    return definitions_[at_];
  }
  /// The repetition level of the next entry; 0 at the end.
  int repetition() { return at_ < count_ || more() ? repetitions_[at_] : 0; }
  /// Moves to the entry after the next one, whose definition level it returns. Throws ParquetFault if the repetition
  /// level is not the expected one: the column has more or fewer elements than those beside it.
  int take(int repetition) {
    if (at_ == count_) require_more();
    if (repetitions_[at_] != repetition) refuse_repetition();
    return definitions_[at_++];
  }

  // The value of the last entry that has one; call once for each such entry, one of these.
  uint64_t number() { return values_.numbers[value_at_++]; }
  std::string_view text() { return values_.texts[value_at_++]; }

  const Leaf& leaf() const { return leaf_; }
  /// Throws ParquetFault if entries are left.
  void finish();
  /// Throws ParquetFault with the column's name in front.
  [[noreturn]] void refuse(std::string_view reason) const { refuse(ParquetFault(std::string(reason))); }
  [[noreturn]] void refuse(const ParquetFault& reason) const;

 private:
  static constexpr size_t kBatch = 1024;

  bool more();
  void require_more();
  [[noreturn]] void refuse_repetition() const;
  void read_batch();
  /// Reads pages until one has entries, or none is left.
  void next_page();
  void read_data_page(const PageHeader& header);
  void read_dictionary(const PageHeader& header);
  Bytes read_packed(const PageHeader& header);
  Bytes unpacked(const PageHeader& header, PageBuffer& buffer);

  const FileBytes& file_;
  const Leaf& leaf_;
  Codec codec_;
  uint64_t offset_, end_;  // where the pages not read begin and end
  int64_t entries_left_;   // in them
  PageBuffer& packed_;
  PageBuffer page_, dictionary_page_;
  MemoryShare dictionary_share_;  // what dictionary_ takes
  std::unique_ptr<Values> dictionary_;

  uint64_t page_left_ = 0;  // entries of the page that are in no batch
  size_t batch_ = kBatch;   // entries of a batch of the page
  PageLevels definition_levels_, repetition_levels_;
  PageValues page_values_;

  std::array<uint8_t, kBatch> definitions_{}, repetitions_{};
  size_t at_ = 0, count_ = 0;  // in the batch
  Values values_;
  size_t value_at_ = 0;
};

}  // namespace hone::parquet
