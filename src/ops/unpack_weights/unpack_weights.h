// unpack_weights: packed matrices (formats/packed_weights.h) to dense memory.
#pragma once

#include "core/stream/context.h"
#include "formats/packed_weights.h"

namespace hone {

/// dst[i] = value of element i, rounded to nearest, ties to even, in dst's dtype. `codes` [matrices, bytes] u8 holds
/// chunks of `layout`; dst has matrices · rows · columns elements, float32 or bfloat16. Deterministic.
struct UnpackWeightsArgs {
  PackedLayout layout;
  Tensor codes;
  Tensor dst;
};

void unpack_weights(const Context& context, const UnpackWeightsArgs& args);

namespace cpu {
void unpack_weights(const Context& context, const UnpackWeightsArgs& args);
}  // namespace cpu

namespace cuda {
void unpack_weights(const Context& context, const UnpackWeightsArgs& args);
}  // namespace cuda

}  // namespace hone
