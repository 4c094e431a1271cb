// `train_detail` of a message: which characters of its content are learnt.
#pragma once

#include <string>
#include <vector>

#include "data/row_columns.h"
#include "data/sample_format.h"

namespace hone {

/// Reads [{"begin_offset": 0, "end_offset": 11, "train": true}, …]: characters (code points) begin_offset to end_offset
/// of `content`, both included, as other tools have it; `weight` may stand for `train`. The result is ascending, in
/// bytes. Errors name `name`: no list, offsets outside of the content or the wrong way round, stretches that overlap.
std::vector<TrainDetail> train_detail_of(const Json& json, const std::string& content, const RowColumns& columns,
                                         const std::string& name);

/// true or 1: 1; false: 0; a number in [0, kMaxWeight]. Anything else is an error that names `name`.
float loss_factor(const Json& value, const RowColumns& columns, const std::string& name);

}  // namespace hone
