#include "data/readers/parquet/footer.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include "data/readers/parquet/thrift_compact.h"

namespace hone::parquet {

namespace {

constexpr std::string_view kMagic = "PAR1", kEncryptedMagic = "PARE";
constexpr uint64_t kMostFooterBytes = uint64_t{1} << 30;
constexpr size_t kMostElements = 100'000;  // in the schema: a column takes kilobytes when it is read

/// The unit of a time, which is a union of empty structures.
std::optional<TimeUnit> read_time_unit(ThriftReader& in) {
  std::optional<TimeUnit> unit;
  in.nested([&](int16_t id) {
    if (id == 1) unit = TimeUnit::kMilli;
    if (id == 2) unit = TimeUnit::kMicro;
    if (id == 3) unit = TimeUnit::kNano;
  });
  return unit;
}

void read_time(ThriftReader& in, LogicalType& type) {
  std::optional<TimeUnit> unit;
  in.nested([&](int16_t id) {
    if (id == 1) type.utc = in.boolean();
    if (id == 2) unit = read_time_unit(in);
  });
  if (!unit) fault("the schema has a time of an unknown unit");
  type.unit = *unit;
}

LogicalType read_logical_type(ThriftReader& in) {
  LogicalType type;
  in.nested([&](int16_t kind) {
    if ((kind < 1 || kind > static_cast<int16_t>(Logical::kGeography)) || kind == 9)
      return;  // a kind of later versions
    type.kind = static_cast<Logical>(kind);
    if (type.kind == Logical::kDecimal) {
      in.nested([&](int16_t id) {
        if (id == 1) type.scale = in.integer32();
        if (id == 2) type.precision = in.integer32();
      });
    } else if (type.kind == Logical::kTime || type.kind == Logical::kTimestamp) {
      read_time(in, type);
    } else if (type.kind == Logical::kInteger) {
      in.nested([&](int16_t id) {
        if (id == 1) type.bits = in.integer32();
        if (id == 2) type.is_signed = in.boolean();
      });
    }
  });
  return type;
}

/// What files wrote before there were logical types.
struct ConvertedType {
  Logical kind = Logical::kNone;
  TimeUnit unit = TimeUnit::kMilli;
  int bits = 64;
  bool is_signed = true;
};
constexpr ConvertedType kConvertedTypes[] = {
    {Logical::kString},
    {Logical::kMap},
    {Logical::kMap},  // MAP_KEY_VALUE
    {Logical::kList},
    {Logical::kEnum},
    {Logical::kDecimal},
    {Logical::kDate},
    {Logical::kTime, TimeUnit::kMilli},
    {Logical::kTime, TimeUnit::kMicro},
    {Logical::kTimestamp, TimeUnit::kMilli},
    {Logical::kTimestamp, TimeUnit::kMicro},
    {Logical::kInteger, TimeUnit::kMilli, 8, false},
    {Logical::kInteger, TimeUnit::kMilli, 16, false},
    {Logical::kInteger, TimeUnit::kMilli, 32, false},
    {Logical::kInteger, TimeUnit::kMilli, 64, false},
    {Logical::kInteger, TimeUnit::kMilli, 8, true},
    {Logical::kInteger, TimeUnit::kMilli, 16, true},
    {Logical::kInteger, TimeUnit::kMilli, 32, true},
    {Logical::kInteger, TimeUnit::kMilli, 64, true},
    {Logical::kJson},
    {Logical::kBson},
    {Logical::kInterval},
};

SchemaElement read_schema_element(ThriftReader& in) {
  SchemaElement element;
  std::optional<int32_t> physical, repetition, converted, children;
  int32_t scale = 0, precision = 0;
  bool named = false;
  in.nested([&](int16_t id) {
    if (id == 1) physical = in.integer32();
    if (id == 2) element.length = in.integer32();
    if (id == 3) repetition = in.integer32();
    if (id == 4) {
      element.name = in.text();
      named = true;
    }
    if (id == 5) children = in.integer32();
    if (id == 6) converted = in.integer32();
    if (id == 7) scale = in.integer32();
    if (id == 8) precision = in.integer32();
    if (id == 10) element.logical = read_logical_type(in);
  });
  if (!named) fault("the schema has a column without a name");
  element.group = !physical;
  element.children = children.value_or(0);
  if (element.children < 0 || (!element.group && element.children > 0)) {
    fault("the schema's column '{}' has {} columns of its own", element.name, element.children);
  }
  if (physical) {
    if (*physical < 0 || *physical > static_cast<int32_t>(Physical::kFixedBytes)) {
      fault("the column '{}' has the unknown type {}", element.name, *physical);
    }
    element.physical = static_cast<Physical>(*physical);
    if (element.physical == Physical::kFixedBytes && element.length <= 0) {
      fault("the column '{}' has values of {} bytes", element.name, element.length);
    }
  }
  if (repetition) {
    if (*repetition < 0 || *repetition > static_cast<int32_t>(Repetition::kRepeated)) {
      fault("the column '{}' has the unknown repetition {}", element.name, *repetition);
    }
    element.repetition = static_cast<Repetition>(*repetition);
  }
  if (element.logical.kind == Logical::kNone && converted && *converted >= 0 &&
      *converted < std::ssize(kConvertedTypes)) {
    const ConvertedType& old = kConvertedTypes[*converted];
    element.logical = {old.kind, scale, precision, old.unit, true, old.bits, old.is_signed};
  }
  return element;
}

ColumnChunk read_column_chunk(ThriftReader& in) {
  ColumnChunk chunk;
  std::optional<int64_t> data_page, dictionary_page, values;
  std::optional<int32_t> codec, physical;
  in.nested([&](int16_t id) {
    if (id == 1) chunk.elsewhere = !in.text().empty();
    if (id == 8 || id == 9) chunk.encrypted = true;
    if (id != 3) return;
    in.nested([&](int16_t field) {
      if (field == 1) physical = in.integer32();
      if (field == 4) codec = in.integer32();
      if (field == 5) values = in.integer();
      if (field == 9) data_page = in.integer();
      if (field == 11) dictionary_page = in.integer();
    });
  });
  if (chunk.encrypted) return chunk;
  if (!data_page || !values || !codec || !physical || *data_page < 0 || *values < 0) {
    fault("the footer lacks the place of a column");
  }
  // Some writers set the offset of a dictionary to 0 where there is none.
  const bool dictionary_first = dictionary_page && *dictionary_page > 0 && *dictionary_page < *data_page;
  chunk.begin = static_cast<uint64_t>(dictionary_first ? *dictionary_page : *data_page);
  chunk.values = *values;
  chunk.codec = static_cast<Codec>(*codec);
  chunk.physical = static_cast<Physical>(*physical);
  return chunk;
}

RowGroup read_row_group(ThriftReader& in) {
  RowGroup group;
  bool counted = false;
  in.nested([&](int16_t id) {
    if (id == 1) in.list([&] { group.columns.push_back(read_column_chunk(in)); });
    if (id == 3) {
      group.rows = in.integer();
      counted = true;
    }
  });
  if (!counted || group.rows < 0) fault("the footer has a row group without a number of rows");
  return group;
}

Footer read_file_metadata(Bytes bytes) {
  Footer footer;
  ThriftReader in(bytes);
  in.structure([&](int16_t id) {
    if (id == 2) {
      in.list([&] {
        if (footer.schema.size() == kMostElements) fault("it has more than {} columns", kMostElements);
        footer.schema.push_back(read_schema_element(in));
      });
    }
    if (id == 4) in.list([&] { footer.row_groups.push_back(read_row_group(in)); });
    if (id != 5) return;
    in.list([&] {
      std::string key, value;
      in.nested([&](int16_t part) {
        if (part == 1) key = in.text();
        if (part == 2) value = in.text();
      });
      if (key == "ARROW:schema") footer.arrow_schema = std::move(value);
    });
  });
  if (footer.schema.empty()) fault("the footer lacks the schema");
  return footer;
}

/// Also counts the rows; the footer has their number too, but some writers leave it 0.
void check_row_groups(Footer& footer) {
  const auto columns =
      std::count_if(footer.schema.begin(), footer.schema.end(), [](const SchemaElement& e) { return !e.group; });
  for (const RowGroup& group : footer.row_groups) {
    if (std::ssize(group.columns) != columns) {
      fault("a row group has {} columns, the schema {}", group.columns.size(), columns);
    }
    if (group.rows > std::numeric_limits<int64_t>::max() - footer.rows) fault("it has too many rows");
    footer.rows += group.rows;
    for (const ColumnChunk& chunk : group.columns) {
      if (!chunk.encrypted && !chunk.elsewhere && chunk.begin >= footer.data_end) {
        fault("a column begins at byte {}, after the data", chunk.begin);
      }
    }
  }
}

}  // namespace

Footer read_footer(const FileBytes& file) {
  constexpr uint64_t kEnds = 12;  // two magics, and the size of the footer
  if (file.size() < kEnds) fault("it has {} bytes, too few for a Parquet file", file.size());
  const std::string tail = file.read(file.size() - 8, 8);
  const std::string_view magic = std::string_view(tail).substr(4);
  if (magic == kEncryptedMagic) throw ParquetFault("it is encrypted", kWithoutEncryption);
  if (magic != kMagic) fault("it does not end as a Parquet file does");
  const uint64_t size = little_endian<uint32_t>(reinterpret_cast<const uint8_t*>(tail.data()));
  if (size > file.size() - kEnds) fault("its footer has {} bytes, the file {}", size, file.size());
  if (size > kMostFooterBytes) fault("its footer has {} bytes", size);
  const uint64_t begin = file.size() - 8 - size;
  const std::string bytes = file.read(begin, size);
  Footer footer = read_file_metadata({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  footer.data_end = begin;
  check_row_groups(footer);
  return footer;
}

}  // namespace hone::parquet
