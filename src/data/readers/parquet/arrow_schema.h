// Arrow's own schema, which its writers store in a file beside that of Parquet: it alone says which integers are
// durations.
#pragma once

#include <string>

#include "data/readers/parquet/row_plan.h"

namespace hone::parquet {

/// Makes the columns of `plan` durations that the schema says are. `encoded`: a message of Arrow's stream format in
/// base64, or "". Ignores a schema with other columns than the file. Throws ParquetFault if it is damaged.
void restore_durations(const std::string& encoded, RowPlan& plan);

}  // namespace hone::parquet
