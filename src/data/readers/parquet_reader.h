// Reads rows of Parquet files.
#pragma once

#include <memory>
#include <string>

#include "data/readers/raw_row.h"

namespace hone {

/// Opens a Parquet file. Each row becomes JSON: lists and structs with their nesting, maps as objects, dates, times and
/// decimals as text, bytes that are not text as null. Omits null members of a struct, since in Parquet every struct has
/// the members of all others. Memory: a page of each column, at most 1 GiB and eight times the file together.
/// Throws UserError if it is not a Parquet file, is encrypted, or has a schema that is not one of tables.
/// Reading throws UserError with the number of the row for damaged pages and bytes that are not UTF-8 in a text.
std::unique_ptr<RowReader> open_parquet(const std::string& file);

}  // namespace hone
