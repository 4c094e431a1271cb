// The header in front of each page of a column.
#pragma once

#include <cstdint>
#include <optional>

#include "core/files/file_bytes.h"
#include "data/readers/parquet/format.h"

namespace hone::parquet {

struct PageHeader {
  PageType type = PageType::kData;
  uint64_t begin = 0;   ///< offset of the page in the file, after this header
  uint32_t packed = 0;  ///< bytes of the page in the file
  uint32_t size = 0;    ///< bytes when it is decompressed
  std::optional<uint32_t> checksum;
  uint32_t values = 0;  ///< with nulls; of a dictionary: all
  Encoding encoding = Encoding::kPlain;
  Encoding definition_encoding = Encoding::kRle, repetition_encoding = Encoding::kRle;
  // kDataV2: levels come first and are not compressed.
  uint32_t definition_bytes = 0, repetition_bytes = 0;
  bool compressed = true;
};

/// Reads the header at `offset`. Throws ParquetFault if it is damaged, or if the page does not end before `end`.
PageHeader read_page_header(const FileBytes& file, uint64_t offset, uint64_t end);

}  // namespace hone::parquet
