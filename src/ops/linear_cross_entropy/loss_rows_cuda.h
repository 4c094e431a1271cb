// The step between the products of linear_cross_entropy: converts rows of logits to losses and, in place, to gradients.
// Included by *_cuda.cu only.
#pragma once

#include "core/stream/cuda_launch.h"
#include "kernels/cuda/ptx_cuda.h"
#include "tape/step_scalars.h"

namespace hone::cuda {

/// The contribution of one supervised token to the totals.
struct TokenResult {
  double loss = 0, entropy = 0, hit = 0;
};

/// Rows of logits with their targets, as kernel arguments.
template <class T>
struct LossRows {
  T* logits = nullptr;  ///< [R, pitch]; columns from `vocab` on are written but not read
  int64_t pitch = 0;    ///< a multiple of 16 bytes
  int vocab = 0;
  int64_t rows = 0;
  const int32_t* targets = nullptr;
  const float* weights = nullptr;
  const StepScalars* scalars = nullptr;
  float soft_cap = 0;  ///< c; 0: none
  float label_smoothing = 0;
  float* token_loss = nullptr;  ///< may be null
  TokenResult* results = nullptr;
  bool wants_grad = false;
};

/// Writes results and token_loss; if gradients are wanted, overwrites logits with
///   (softmax(logits) - q) · weight · inv_loss_weight
/// where q = onehot(target), or smoothed; with a soft cap, which cap_rows() has applied, times 1 - (logits / c)².
template <class T>
void differentiate_rows(const Context& context, const LossRows<T>& rows);

/// logits = c · tanh(logits / c), rounded.
template <class T>
void cap_rows(const Context& context, const LossRows<T>& rows);

/// As differentiate_rows(), on Hopper with the rows in registers; returns false if a row is too long for that.
bool differentiate_rows_hopper(const Context& context, const LossRows<__nv_bfloat16>& rows);

/// Adds the results of S tokens, or of the first `present` ones (device memory, may be null), in a fixed order.
void add_totals(const Context& context, const TokenResult* results, const float* weights, int64_t count,
                const int32_t* present, LossTotals* totals);

#ifdef __CUDACC__

/// Placeholder for a missing logit: less than any logit, with exponential 0, and scalable without overflow.
inline constexpr float kLowestLogit = -0x1p100f;

inline constexpr float kLog2E = 1.4426950408889634f;

__device__ inline float exp_of(float x) { return exp2_approximate(x * kLog2E); }

/// Statistics of a row or of a part of it.
struct RowSums {
  float before = kLowestLogit;  ///< largest logit before the target
  float rest = kLowestLogit;    ///< largest logit from the target on
  double sum = 0;               ///< Σ exp(x - m) with m the larger of the two
  double weighted = 0;          ///< Σ exp(x - m) · (x - m)
  double logits = 0;            ///< Σ x, for label smoothing

  __device__ float largest() const { return fmaxf(before, rest); }
};

/// The largest value over a block of kThreads threads, in every thread.
template <int kThreads>
__device__ inline float block_max(float value, float* partial) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  __syncthreads();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = partial[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) value = fmaxf(value, partial[warp]);
  return value;
}

/// The logit of the target; NaN for a target outside the vocabulary, which makes the row's results NaN.
template <class T>
__device__ inline float target_logit(const LossRows<T>& k, int64_t row) {
  const int target = k.targets[row];
  return target >= 0 && target < k.vocab ? to_float(k.logits[row * k.pitch + target]) : __int_as_float(0x7fffffff);
}

/// The slope of the cap at a capped logit; 1 without a cap.
template <bool kCapped>
__device__ inline float slope_of_cap(float logit, float inverse_cap) {
  if constexpr (!kCapped) return 1.0f;
  const float y = logit * inverse_cap;
  return 1.0f - y * y;
}

/// Called by one thread per row.
template <bool kSmooth, class T>
__device__ inline void write_result(const LossRows<T>& k, int64_t row, const RowSums& sums, float target_logit) {
  const float largest = sums.largest();
  const double log_sum = log(sums.sum);
  TokenResult result{log_sum + (static_cast<double>(largest) - static_cast<double>(target_logit)),
                     log_sum - sums.weighted / sums.sum, target_logit == largest && sums.before < largest ? 1.0 : 0.0};
  if constexpr (kSmooth) {
    result.loss += static_cast<double>(k.label_smoothing) * (static_cast<double>(target_logit) - sums.logits / k.vocab);
  }
  k.results[row] = result;
  if (k.token_loss != nullptr) k.token_loss[row] = static_cast<float>(result.loss);
}

/// The labels' part of a row's gradient, subtracted from its scaled softmax.
struct LabelGradient {
  float scale;      ///< factor of the softmax: weight · inv_loss_weight
  float of_target;  ///< additional value at the target
  float of_all;
};

template <bool kSmooth, class T>
__device__ inline LabelGradient label_gradient(const LossRows<T>& k, int64_t row, float target_logit) {
  const float lost = target_logit != target_logit ? target_logit : 0.0f;
  const float scale = k.weights[row] * k.scalars->inv_loss_weight + lost;
  if constexpr (!kSmooth) return {scale, scale, 0.0f};
  return {scale, scale * (1.0f - k.label_smoothing), scale * k.label_smoothing / static_cast<float>(k.vocab)};
}

#endif  // __CUDACC__

}  // namespace hone::cuda
