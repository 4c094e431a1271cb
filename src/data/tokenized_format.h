// Rows that are tokens already.
#pragma once

#include "data/row_columns.h"
#include "data/sample_format.h"

namespace hone {

/// {"input_ids": […], "labels": […], "weights": […], "attention_mask": [1, …], "position_ids": [0, 1, …]}.
/// labels are aligned with input_ids as Hugging Face's (not shifted), -100 = not learnt; absent: all of input_ids.
/// A weight of 0 is not learnt either. attention_mask and position_ids must say what Hone does anyway: no padding, one
/// document a row.
TokenizedRow tokenized_row(const RowColumns& columns);

}  // namespace hone
