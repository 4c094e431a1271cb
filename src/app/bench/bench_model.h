// The models that benchmarks run: the shapes of released ones, without their files.
#pragma once

#include <string>
#include <vector>

#include "models/registry.h"

namespace hone {

/// Names of the shapes that need no folder (bench_shapes.h).
std::vector<std::string> bench_model_names();

/// One of those shapes, or the config.json of a model folder; with `layers` > 0 cut to that many. UserError with near
/// names if it is neither.
HfConfig bench_model(const std::string& name_or_folder, int64_t layers);

/// What --dtype names: bfloat16 or float32, else UserError.
DType dtype_named(const std::string& name);

}  // namespace hone
