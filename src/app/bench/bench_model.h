// The models that benchmarks run: the shapes of released ones, without their files.
#pragma once

#include <string>
#include <vector>

#include "models/registry.h"

namespace hone {

/// Names of the shapes that need no folder.
std::vector<std::string> bench_model_names();

/// One of those shapes, or the config.json of a model folder; with `layers` > 0 cut to that many. UserError with near
/// names if it is neither.
HfConfig bench_model(const std::string& name_or_folder, int64_t layers);

/// Multiply-adds × 2 of one token's forward pass: products of attention, MLPs or chosen experts, router and head, and
/// causal attention over `seq` tokens, of which a token sees half on average. Windows are not counted.
double forward_flops_per_token(const DecoderConfig& config, int64_t seq);

}  // namespace hone
