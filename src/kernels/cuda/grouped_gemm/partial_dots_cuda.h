// The last step of a sum along rows to which several tiles contribute, in a fixed order. CUDA only.
#pragma once

#include "core/base/tensor.h"
#include "core/stream/context.h"

namespace hone::cuda {

/// to[assignment[r]] = Σ_p partial[p, r] in increasing p, for the rows r < offsets[E]. partial f32 [P, R]; offsets i64,
/// [E + 1]; assignment i32 [R]; to f32.
void add_partial_dots(const Context& context, const Tensor& partial, const Tensor& offsets, const Tensor& assignment,
                      const Tensor& to);

}  // namespace hone::cuda
