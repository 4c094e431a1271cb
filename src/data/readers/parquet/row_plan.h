// What the columns of a file are as JSON: a tree of objects, lists and maps whose leaves are columns.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/readers/parquet/footer.h"

namespace hone::parquet {

/// How a value of a column becomes JSON.
enum class ValueForm {
  kBoolean,
  kSigned,     ///< an integer of `bits` bits
  kUnsigned,   ///< likewise
  kFloat,      ///< 32 bits
  kDouble,     ///< 64 bits
  kHalf,       ///< 16 bits, written as text
  kText,       ///< UTF-8
  kDate,       ///< days since 1970-01-01
  kTime,       ///< `unit`s since midnight
  kTimestamp,  ///< `unit`s since 1970-01-01 00:00
  kInt96,      ///< nanoseconds of the day, and the number of the Julian day
  kDuration,   ///< `unit`s, written as text
  kDecimal,    ///< `scale` digits after the point
  kNothing,    ///< bytes that are not text, and columns of nulls: null
};

/// A column of the file.
struct Leaf {
  std::string path;  ///< names from the root on, with dots between
  Physical physical = Physical::kBoolean;
  int32_t length = 0;  ///< kFixedBytes: bytes of a value
  ValueForm form = ValueForm::kNothing;
  int bits = 64;
  TimeUnit unit = TimeUnit::kSecond;
  bool utc = false;
  int scale = 0;
  int deepest_definition = 0;  ///< the definition level of a value that is there
  int deepest_repetition = 0;  ///< lists around the value
};

/// A JSON value made of one or several columns. Definition levels say how much of it is there, repetition levels where
/// a list goes on (Melnik et al. 2010, Dremel).
struct RowNode {
  enum class Shape { kLeaf, kObject, kList, kMap };

  Shape shape = Shape::kLeaf;
  std::string name;    ///< the column's or member's
  std::string key;     ///< the same as JSON, with a colon: "\"name\":"
  int floor = 0;       ///< the definition level where what is around it is there
  int present = 0;     ///< … where the value is not null: floor, or floor + 1 if it may be one
  int repetition = 0;  ///< kList, kMap: the repetition level of all elements but the first; present + 1 defines one
  size_t first_leaf = 0, last_leaf = 0;  ///< its columns: [first, last)
  std::vector<RowNode> children;         ///< members; the element of a list; the key and value of a map
  bool repeated_names = false;           ///< kObject: several members have the same name
};

struct RowPlan {
  RowNode root;  ///< kObject of the file's columns
  std::vector<Leaf> leaves;
};

/// Reads lists in three levels and the older forms of two and one, and maps. Throws ParquetFault for a schema that is
/// not a tree, for columns nested deeper than 64, for lists and maps of other forms, for types that no file has, and
/// for names that are not UTF-8.
RowPlan make_row_plan(const Footer& footer);

}  // namespace hone::parquet
