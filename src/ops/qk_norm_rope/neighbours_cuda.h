// qk_norm_rope where nothing is normalised and pairs are neighbours: each vector of 8 elements turns by itself.
#pragma once

#include "ops/qk_norm_rope/qk_norm_rope.h"

namespace hone::cuda {

/// Whether turn_neighbours() serves: the layout is interleaved, there is no norm, and vectors are aligned.
bool allows_turning_neighbours(const Context& context, const QkNormRopeArgs& args, const Tensor& from,
                               const Tensor& to);

/// to = `from` turned by the angles, or (direction -1) back, + beta · to. They may be the same tensor.
void turn_neighbours(const Context& context, const QkNormRopeArgs& args, const Tensor& from, const GradDest& to,
                     float direction);

}  // namespace hone::cuda
