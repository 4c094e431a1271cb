#include "data/readers/parquet/column_reader.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <bit>

#include "data/readers/parquet/codecs.h"

namespace hone::parquet {

namespace {

constexpr size_t kPrefixedBatch = 16;                     // texts that repeat each other may be large together
constexpr uint64_t kMostPageBytes = uint64_t{1} << 30;    // for one page, decompressed
constexpr uint64_t kMostLevelBytes = uint64_t{64} << 20;  // for one page of version 2

int width_of_levels(int deepest) { return static_cast<int>(std::bit_width(static_cast<unsigned>(deepest))); }

ParquetFault in_column(const Leaf& leaf, const ParquetFault& reason) {
  return ParquetFault(fmt::format("in the column '{}': {}", leaf.path, reason.what()), reason.fix());
}

}  // namespace

void check_chunk(const Leaf& leaf, const ColumnChunk& chunk) {
  try {
    if (chunk.encrypted) throw ParquetFault("it is encrypted", kWithoutEncryption);
    if (chunk.elsewhere) throw ParquetFault("its pages are in another file", "write the data as one file");
    if (chunk.physical != leaf.physical) fault("the footer gives it two types");
    check_codec(chunk.codec);
  } catch (const ParquetFault& reason) {
    throw in_column(leaf, reason);
  }
}

PageLevels::PageLevels(Bytes bytes, int deepest) : deepest_(deepest), runs_(bytes, width_of_levels(deepest)) {}

PageLevels::PageLevels(ByteCursor& in, Encoding encoding, uint64_t count, int deepest) : deepest_(deepest) {
  if (deepest == 0) return;
  old_ = encoding == Encoding::kBitPacked;
  if (old_) {
    old_levels_ = OldLevels(in, count, width_of_levels(deepest));
  } else if (encoding == Encoding::kRle) {
    runs_ = BitRuns(in.take(in.word()), width_of_levels(deepest));
  } else {
    fault("the levels of a page have the unknown encoding {}", static_cast<int>(encoding));
  }
}

void PageLevels::read(uint8_t* out, size_t count) {
  if (deepest_ == 0) {
    std::fill_n(out, count, uint8_t{0});
    return;
  }
  if (old_) {
    old_levels_.read(out, count);
  } else {
    runs_.read(out, count);
  }
  if (count > 0 && *std::max_element(out, out + count) > deepest_) fault("a level is deeper than the schema");
}

ColumnReader::ColumnReader(const FileBytes& file, uint64_t data_end, const Leaf& leaf, const ColumnChunk& chunk,
                           PageMemory& memory, PageBuffer& packed)
    : file_(file),
      leaf_(leaf),
      codec_(chunk.codec),
      offset_(chunk.begin),
      end_(data_end),
      entries_left_(chunk.values),
      packed_(packed),
      page_(memory),
      dictionary_page_(memory),
      dictionary_share_(memory) {}

void ColumnReader::refuse(const ParquetFault& reason) const { throw in_column(leaf_, reason); }

void ColumnReader::refuse_repetition() const { refuse("it has more or fewer elements than the columns beside it"); }

void ColumnReader::require_more() {
  if (!more()) refuse("it ends before the rows do");
}

bool ColumnReader::more() {
  if (page_left_ == 0 && entries_left_ == 0) return false;
  try {
    if (page_left_ == 0) next_page();
    if (page_left_ == 0) return false;
    read_batch();
  } catch (const ParquetFault& reason) {
    refuse(reason);
  }
  return true;
}

void ColumnReader::finish() {
  if (at_ < count_ || more()) refuse("it goes on after the last row");
}

void ColumnReader::read_batch() {
  at_ = 0;
  count_ = 0;
  const auto count = static_cast<size_t>(std::min<uint64_t>(batch_, page_left_));
  repetition_levels_.read(repetitions_.data(), count);
  definition_levels_.read(definitions_.data(), count);
  value_at_ = 0;
  if (leaf_.form != ValueForm::kNothing) {
    const auto present = std::count(definitions_.begin(), definitions_.begin() + static_cast<std::ptrdiff_t>(count),
                                    static_cast<uint8_t>(leaf_.deepest_definition));
    page_values_.read(static_cast<size_t>(present), values_);
  }
  page_left_ -= count;
  count_ = count;
}

void ColumnReader::next_page() {
  while (page_left_ == 0 && entries_left_ > 0) {
    const PageHeader header = read_page_header(file_, offset_, end_);
    offset_ = header.begin + header.packed;
    if (header.type == PageType::kDictionary) {
      read_dictionary(header);
    } else if (header.type == PageType::kData || header.type == PageType::kDataV2) {
      if (header.values > static_cast<uint64_t>(entries_left_)) {
        fault("its pages have more values than the footer says");
      }
      entries_left_ -= header.values;
      if (header.values > 0) read_data_page(header);
    }
  }
}

Bytes ColumnReader::read_packed(const PageHeader& header) {
  uint8_t* bytes = packed_.at_least(header.packed);
  file_.read(header.begin, bytes, header.packed);
  if (header.checksum && crc32_z(0, bytes, header.packed) != *header.checksum) {
    fault("the checksum of a page does not match");
  }
  return {bytes, header.packed};
}

/// The bytes of a page without its compression, in `buffer`.
Bytes ColumnReader::unpacked(const PageHeader& header, PageBuffer& buffer) {
  if (header.size > kMostPageBytes)
    throw ParquetFault(fmt::format("a page has {} bytes", header.size), kWithSmallerPages);
  const Bytes packed = read_packed(header);
  const uint64_t levels = uint64_t{header.repetition_bytes} + header.definition_bytes;
  const bool plain = codec_ == Codec::kNone || (header.type == PageType::kDataV2 && !header.compressed);
  if (levels > header.packed || levels > header.size) fault("the levels of a page have {} bytes", levels);
  const uint64_t packed_values = header.packed - levels, values = header.size - levels;
  if (values > most_decompressed(plain ? Codec::kNone : codec_, packed_values)) {
    fault("a page of {} bytes claims to have {} of them", header.packed, header.size);
  }
  uint8_t* bytes = buffer.at_least(header.size);
  if (levels > 0) std::memcpy(bytes, packed.data(), levels);
  if (values > 0) decompress(plain ? Codec::kNone : codec_, packed.subspan(levels), bytes + levels, values);
  return {bytes, header.size};
}

void ColumnReader::read_data_page(const PageHeader& header) {
  ByteCursor in(unpacked(header, page_));
  if (header.type == PageType::kDataV2) {
    if (header.repetition_bytes > kMostLevelBytes || header.definition_bytes > kMostLevelBytes) {
      fault("the levels of a page are too large");
    }
    repetition_levels_ = PageLevels(in.take(header.repetition_bytes), leaf_.deepest_repetition);
    definition_levels_ = PageLevels(in.take(header.definition_bytes), leaf_.deepest_definition);
  } else {
    repetition_levels_ = PageLevels(in, header.repetition_encoding, header.values, leaf_.deepest_repetition);
    definition_levels_ = PageLevels(in, header.definition_encoding, header.values, leaf_.deepest_definition);
  }
  if (leaf_.form != ValueForm::kNothing) {
    page_values_ = PageValues(leaf_, header.encoding, in.rest(), dictionary_.get());
  }
  batch_ = header.encoding == Encoding::kDeltaByteArray ? kPrefixedBatch : kBatch;
  page_left_ = header.values;
}

void ColumnReader::read_dictionary(const PageHeader& header) {
  if (leaf_.form == ValueForm::kNothing) return;
  if (dictionary_) fault("it has two dictionaries");
  if (header.encoding != Encoding::kPlain && header.encoding != Encoding::kPlainDictionary) {
    fault("a dictionary has the unknown encoding {}", static_cast<int>(header.encoding));
  }
  const Bytes bytes = unpacked(header, dictionary_page_);
  if (header.values > bytes.size()) fault("a dictionary of {} bytes has {} values", bytes.size(), header.values);
  dictionary_share_.resize(header.values * sizeof(std::string_view));  // or of a number
  auto values = std::make_unique<Values>();
  PageValues(leaf_, Encoding::kPlain, bytes, nullptr).read(header.values, *values);
  dictionary_ = std::move(values);
}

}  // namespace hone::parquet
