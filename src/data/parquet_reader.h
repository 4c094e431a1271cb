// Rows of Parquet files, through Apache Arrow.
#pragma once

#include <memory>
#include <string>

#include "data/raw_row.h"

namespace hone {

/// Opens a Parquet file. Each row becomes JSON by itself: lists and structs as they are nested, maps as objects,
/// timestamps and decimals as text. A member of a struct that is null is left out, since Parquet gives every struct the
/// members of all others. Throws UserError: the program has no Parquet module (with how to get it), not a Parquet file.
/// Reading throws UserError with the number of the row: broken pages, bytes that are not text.
std::unique_ptr<RowReader> open_parquet(const std::string& file);

/// Whether the Parquet module is there.
bool has_parquet();

}  // namespace hone
