// The soft cap of a block of logits: of the head's loss, and of ops/soft_cap.
#pragma once

#include "kernels/cpu/row_math/row_math.h"

namespace hone {

/// x = cap · tanh(x / cap) for n elements, by tanh(z) = 2 · sigmoid(2 z) - 1: the error is below 2^-22 of the cap.
inline void soft_cap_block(const RowMath& math, float cap, float* x, int64_t n) {
  math.scale(2.0f / cap, x, x, n);
  math.sigmoid(x, x, n);
  for (int64_t i = 0; i < n; ++i) x[i] = cap * (2.0f * x[i] - 1.0f);
}

}  // namespace hone
