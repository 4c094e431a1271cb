// qk_norm_rope without a norm and with interleaved pairs: each vector of 8 elements is rotated separately.
#pragma once

#include "ops/qk_norm_rope/qk_norm_rope.h"

namespace hone::cuda {

/// Whether turn_neighbours() applies: interleaved layout, no norm, aligned vectors.
bool allows_turning_neighbours(const Context& context, const QkNormRopeArgs& args, const Tensor& from,
                               const Tensor& to);

/// to = `from` rotated by the angles, or back (direction -1), + beta · to. They may be the same tensor.
void turn_neighbours(const Context& context, const QkNormRopeArgs& args, const Tensor& from, const GradDest& to,
                     float direction);

}  // namespace hone::cuda
