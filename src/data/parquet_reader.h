// Reads rows of Parquet files with Apache Arrow.
#pragma once

#include <memory>
#include <string>

#include "data/raw_row.h"

namespace hone {

/// Opens a Parquet file. Each row becomes JSON: lists and structs with their nesting, maps as objects, timestamps and
/// decimals as text. Omits null members of a struct, since in Parquet every struct has the members of all others.
/// Throws UserError if the program has no Parquet module (with how to build it), or if it is not a Parquet file.
/// Reading throws UserError with the number of the row for damaged pages and bytes that are not text.
std::unique_ptr<RowReader> open_parquet(const std::string& file);

/// Whether the Parquet module exists.
bool has_parquet();

}  // namespace hone
