// JSON of the values of columns: text, numbers, dates and decimals. Appends to a row, without a value in between.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "data/readers/parquet/row_plan.h"

namespace hone::parquet {

inline constexpr std::string_view kJsonNull = "null";

/// Appends `text` in quotes. Throws ParquetFault if it is not UTF-8.
void append_json_text(std::string& out, std::string_view text);

/// Appends a value of a column of numbers. `bits`: a boolean as 0 or 1, an integer with its sign extended, the bits of
/// a floating-point number. NaN and infinities become null.
void append_number(std::string& out, uint64_t bits, const Leaf& leaf);

/// Appends a value of a column of bytes: text, or a decimal, a 16-bit number or a 96-bit timestamp as text. Throws
/// ParquetFault for bytes that are not UTF-8, and decimals of no byte or of more than 32.
void append_bytes(std::string& out, std::string_view value, const Leaf& leaf);

}  // namespace hone::parquet
