// Shared by the kernels of the router: a token's logits in the registers of a warp, and their scores.
#pragma once

#include <math_constants.h>

#include "kernels/cuda/rows/vectors_cuda.h"
#include "ops/router/router_rule.h"

namespace hone::cuda {

/// The maximum number of experts per warp.
inline constexpr int64_t kMaxExperts = 1024;

/// Calls f with the number of logits per lane as a constant.
template <class F>
void with_logits_per_lane(int64_t experts, F&& f) {
  HONE_ASSERT(experts <= kMaxExperts, "a GPU routes to at most 1024 experts");
  if (experts <= 32) return f(std::integral_constant<int, 1>{});
  if (experts <= 64) return f(std::integral_constant<int, 2>{});
  if (experts <= 128) return f(std::integral_constant<int, 4>{});
  if (experts <= 256) return f(std::integral_constant<int, 8>{});
  if (experts <= 384) return f(std::integral_constant<int, 12>{});
  f(std::integral_constant<int, 32>{});
}

#ifdef __CUDACC__

/// Lane l holds the logits of experts l, l + 32, …; those beyond the last are -infinity.
template <int kPerLane>
struct LogitRow {
  float logits[kPerLane];
  RouterScores scores;
  float largest, inverse_sum;  // for exp(logit - largest), or sigmoids; valid after distribute()

  __device__ static int expert(int i) { return static_cast<int>(threadIdx.x % 32) + 32 * i; }

  __device__ LogitRow(const float* row, int experts, RouterScores kind) : scores(kind), largest(0.0f) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) logits[i] = expert(i) < experts ? row[expert(i)] : -CUDART_INF_F;
    if (scores == RouterScores::kSigmoid) return;
    largest = -CUDART_INF_F;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) largest = fmaxf(largest, logits[i]);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    }
  }

  __device__ static float sigmoid(float logit) { return 1.0f / (1.0f + expf(-logit)); }

  /// Computes p of all experts; returns its entropy in nats: log Z − Σ p · log(unnormalised p).
  __device__ float distribute(float (&p)[kPerLane]) {
    const bool softmax = scores == RouterScores::kSoftmax;
    float sum = 0.0f, weighted = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const float centred = logits[i] - largest;
      p[i] = softmax ? expf(centred) : sigmoid(logits[i]);
      sum += p[i];
      // log sigmoid(x) = min(x, 0) − log(1 + exp(−|x|))
      const float log_p = softmax ? centred : fminf(logits[i], 0.0f) - log1pf(expf(-fabsf(logits[i])));
      weighted += p[i] > 0.0f ? p[i] * log_p : 0.0f;
    }
    sum = warp_sum(sum) + (softmax ? 0.0f : kRouterEpsilon);
    inverse_sum = 1.0f / sum;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) p[i] *= inverse_sum;
    return logf(sum) - warp_sum(weighted) * inverse_sum;
  }

  /// log Σ exp of the logits, after distribute().
  __device__ float log_sum_exp() const {
    if (scores == RouterScores::kSoftmax) return largest - logf(inverse_sum);
    float most = -CUDART_INF_F, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) most = fmaxf(most, logits[i]);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) sum += expf(logits[i] - most);
    return most + logf(warp_sum(sum));
  }

  /// s of one expert from its logit, after distribute(); with softmax bitwise equal to the values there.
  __device__ float score(float logit) const {
    return scores == RouterScores::kSoftmax ? expf(logit - largest) * inverse_sum : sigmoid(logit);
  }
};

#endif  // __CUDACC__

}  // namespace hone::cuda
