// The footer of a Parquet file: its schema as a flat list, and where the pages of each column are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/files/file_bytes.h"
#include "data/readers/parquet/format.h"

namespace hone::parquet {

struct LogicalType {
  Logical kind = Logical::kNone;
  int32_t scale = 0, precision = 0;  ///< kDecimal
  TimeUnit unit = TimeUnit::kMilli;  ///< kTime, kTimestamp
  bool utc = false;                  ///< kTimestamp: an instant, not the time of some clock
  int bits = 64;                     ///< kInteger
  bool is_signed = true;             ///< kInteger
};

/// A node of the schema; nodes are in depth-first order.
struct SchemaElement {
  std::string name;
  Repetition repetition = Repetition::kRequired;
  int32_t children = 0;  ///< 0: a column
  bool group = false;    ///< has no physical type
  Physical physical = Physical::kBoolean;
  int32_t length = 0;  ///< kFixedBytes: bytes of a value
  LogicalType logical;
};

/// The pages of one column in a row group.
struct ColumnChunk {
  uint64_t begin = 0;  ///< offset of the first page
  int64_t values = 0;  ///< with nulls
  Codec codec = Codec::kNone;
  Physical physical = Physical::kBoolean;
  bool encrypted = false;
  bool elsewhere = false;  ///< in another file
};

struct RowGroup {
  int64_t rows = 0;
  std::vector<ColumnChunk> columns;  ///< one for each column of the schema
};

struct Footer {
  std::vector<SchemaElement> schema;  ///< the first one is the root
  std::vector<RowGroup> row_groups;
  int64_t rows = 0;          ///< in all row groups
  std::string arrow_schema;  ///< what Arrow's writer stored of its own schema, in base64; may be empty
  uint64_t data_end = 0;     ///< offset of the footer: pages end before
};

/// Reads the footer. Throws ParquetFault if the file is not Parquet, is encrypted, or if its footer is damaged: every
/// count is checked against the schema, offsets are before the footer.
Footer read_footer(const FileBytes& file);

}  // namespace hone::parquet
