// What the kernels of the router share: a token's logits in the registers of a warp, and their softmax.
#pragma once

#include <math_constants.h>

#include "ops/row_math/vectors_cuda.h"

namespace hone::cuda {

/// The most experts that a warp holds.
inline constexpr int64_t kMaxExperts = 1024;

/// Calls f with the number of logits that a lane holds, as a constant.
template <class F>
void with_logits_per_lane(int64_t experts, F&& f) {
  HONE_ASSERT(experts <= kMaxExperts, "a GPU routes to at most 1024 experts");
  if (experts <= 32) return f(std::integral_constant<int, 1>{});
  if (experts <= 64) return f(std::integral_constant<int, 2>{});
  if (experts <= 128) return f(std::integral_constant<int, 4>{});
  if (experts <= 256) return f(std::integral_constant<int, 8>{});
  f(std::integral_constant<int, 32>{});
}

#ifdef __CUDACC__

/// Lane l holds the logits of experts l, l + 32, …; those beyond the last are -infinity.
template <int kPerLane>
struct LogitRow {
  float logits[kPerLane];
  float largest, inverse_sum;

  __device__ static int expert(int i) { return static_cast<int>(threadIdx.x % 32) + 32 * i; }

  __device__ LogitRow(const float* row, int experts) {
    largest = -CUDART_INF_F;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      logits[i] = expert(i) < experts ? row[expert(i)] : -CUDART_INF_F;
      largest = fmaxf(largest, logits[i]);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    }
  }

  /// p of all experts; returns the entropy in nats: log Z − Σ p · (logit − max).
  __device__ float softmax(float (&p)[kPerLane]) {
    float sum = 0.0f, weighted = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const float centred = logits[i] - largest;
      p[i] = expf(centred);
      sum += p[i];
      weighted += p[i] > 0.0f ? p[i] * centred : 0.0f;
    }
    sum = warp_sum(sum);
    inverse_sum = 1.0f / sum;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) p[i] *= inverse_sum;
    return logf(sum) - warp_sum(weighted) * inverse_sum;
  }

  /// p of one expert from its logit: the same bits as in softmax(), which has run.
  __device__ float probability(float logit) const { return expf(logit - largest) * inverse_sum; }
};

#endif  // __CUDACC__

}  // namespace hone::cuda
