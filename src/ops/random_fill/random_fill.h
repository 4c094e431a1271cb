// random_fill: random numbers for weights, generated on the weights' device.
#pragma once

#include <cstdint>

#include "core/stream/context.h"

namespace hone {

enum class Distribution {
  kNormal,   ///< mean 0, standard deviation `scale`
  kUniform,  ///< in [-scale, scale)
};

/// dst[i] = scale · number i of the PhiloxSequence of `key` (core/base/philox.h), rounded once to the dtype of dst:
/// normal(), or 2 · uniform() − 1. dst is float32 or bfloat16, of any size. An element depends only on the key and its
/// index; normal numbers of CPU and GPU may differ in float64 logarithm and cosine, before rounding to float32.
struct RandomFillArgs {
  Tensor dst;
  Distribution distribution = Distribution::kNormal;
  float scale = 1.0f;
  uint64_t key = 0;
};

void random_fill(const Context& context, const RandomFillArgs& args);

namespace cpu {
void random_fill(const Context& context, const RandomFillArgs& args);
}

namespace cuda {
void random_fill(const Context& context, const RandomFillArgs& args);
}

}  // namespace hone
