// The second step of a sum over many rows on a GPU: CTAs sum chunks of rows of fixed size, and this adds the chunks, so
// that the result does not depend on the order in which CTAs run.
#pragma once

#include <initializer_list>

#include "core/stream/context.h"
#include "tape/weight.h"

namespace hone::cuda {

/// sum[i] = Σ_c partial[c, i] in a fixed order, for partial f32 [C, N]; C may be 0. The N columns are those of the
/// destinations (float32, at most three) one after another: dst = sum + beta · dst.
void sum_chunks(const Context& context, const Tensor& partial, std::initializer_list<GradDest> destinations);

}  // namespace hone::cuda
