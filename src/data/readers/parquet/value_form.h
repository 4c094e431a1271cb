// From the type of a column to the JSON of its values.
#pragma once

#include "data/readers/parquet/row_plan.h"

namespace hone::parquet {

/// Sets how values of `element` become JSON. Throws ParquetFault for a logical type that its physical type cannot have.
void set_value_form(const SchemaElement& element, Leaf& leaf);

}  // namespace hone::parquet
