// Losses of rows of any length and dtype: one CTA per row, which it reads from memory three times: for the maximum, the
// sums and the gradient.
#include "ops/linear_cross_entropy/loss_rows_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 512;

/// Calls f(pack, column) for the thread's packs of a row of `vocab` logits; the last may exceed the row.
template <class T, class F>
__device__ inline void for_packs(T* row, int vocab, F&& f) {
  for (int column = threadIdx.x * Pack<T>::kSize; column < vocab; column += kThreads * Pack<T>::kSize) {
    f(load_pack(row + column), column);
  }
}

template <class T, bool kSmooth, bool kCapped>
__global__ void __launch_bounds__(kThreads) differentiate_kernel(LossRows<T> k) {
  constexpr int kSize = Pack<T>::kSize;
  __shared__ double partial_sums[kThreads / 32];
  __shared__ float partial_max[kThreads / 32];
  const int64_t row = blockIdx.x;
  const int target = k.targets[row], vocab = k.vocab;
  T* logits = k.logits + row * k.pitch;
  const float logit_of_target = target_logit(k, row);

  RowSums sums;
  for_packs(logits, vocab, [&](const Pack<T>& pack, int column) {
    for (int i = 0; i < kSize && column + i < vocab; ++i) {
      float& largest = column + i < target ? sums.before : sums.rest;
      largest = fmaxf(largest, to_float(pack.values[i]));
    }
  });
  sums.before = block_max<kThreads>(sums.before, partial_max);
  sums.rest = block_max<kThreads>(sums.rest, partial_max);
  const float largest = sums.largest();

  float sum = 0.0f, weighted = 0.0f, total = 0.0f;
  for_packs(logits, vocab, [&](const Pack<T>& pack, int column) {
    for (int i = 0; i < kSize && column + i < vocab; ++i) {
      const float below = to_float(pack.values[i]) - largest, e = exp_of(below);
      sum += e;
      weighted += e * below;
      if constexpr (kSmooth) total += to_float(pack.values[i]);
    }
  });
  sums.sum = block_sum<kThreads>(static_cast<double>(sum), partial_sums);
  sums.weighted = block_sum<kThreads>(static_cast<double>(weighted), partial_sums);
  if constexpr (kSmooth) sums.logits = block_sum<kThreads>(static_cast<double>(total), partial_sums);
  if (threadIdx.x == 0) write_result<kSmooth>(k, row, sums, logit_of_target);

  if (!k.wants_grad) return;
  const LabelGradient label = label_gradient<kSmooth>(k, row, logit_of_target);
  const auto share = static_cast<float>(label.scale / sums.sum);
  const float inverse_cap = kCapped ? 1.0f / k.soft_cap : 0.0f;
  for_packs(logits, vocab, [&](Pack<T> pack, int column) {
    for (int i = 0; i < kSize; ++i) {
      const bool inside = column + i < vocab;
      const float logit = to_float(pack.values[i]);
      const float softmax = inside ? share * exp_of(logit - largest) : 0.0f;
      const float gradient = kSmooth ? softmax - label.of_all : softmax;
      const float of_capped = gradient - (column + i == target ? label.of_target : 0.0f);
      pack.values[i] = from_float<T>(of_capped * slope_of_cap<kCapped>(inside ? logit : 0.0f, inverse_cap));
    }
    store_pack(logits + column, pack);
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads) cap_kernel(LossRows<T> k) {
  const float inverse_cap = 1.0f / k.soft_cap;
  T* logits = k.logits + int64_t{blockIdx.x} * k.pitch;
  for_packs(logits, k.vocab, [&](Pack<T> pack, int column) {
#pragma unroll
    for (int i = 0; i < Pack<T>::kSize; ++i) {
      pack.values[i] = from_float<T>(k.soft_cap * tanhf(to_float(pack.values[i]) * inverse_cap));
    }
    store_pack(logits + column, pack);
  });
}

constexpr int kTotalsThreads = 1024;

__global__ void __launch_bounds__(kTotalsThreads)
    add_totals_kernel(const TokenResult* results, const float* weights, int64_t count, const int32_t* present,
                      LossTotals* totals) {
  __shared__ double partial[kTotalsThreads / 32];
  if (present != nullptr) count = *present;
  double loss = 0, weight = 0, hits = 0, entropy = 0;
  for (int64_t s = threadIdx.x; s < count; s += kTotalsThreads) {
    const TokenResult result = results[s];
    const double w = weights[s];
    loss += w * result.loss;
    weight += w;
    hits += result.hit;
    entropy += result.entropy;
  }
  loss = block_sum<kTotalsThreads>(loss, partial);
  weight = block_sum<kTotalsThreads>(weight, partial);
  hits = block_sum<kTotalsThreads>(hits, partial);
  entropy = block_sum<kTotalsThreads>(entropy, partial);
  if (threadIdx.x != 0) return;
  totals->weighted_loss += loss;
  totals->weight += weight;
  totals->hits += hits;
  totals->entropy += entropy;
  totals->tokens += static_cast<double>(count);
}

}  // namespace

template <class T>
void differentiate_rows(const Context& context, const LossRows<T>& rows) {
  const auto launch = [&](auto* kernel) {
    kernel<<<blocks_for(rows.rows, 1), kThreads, 0, stream_of(context)>>>(rows);
  };
  if (rows.soft_cap > 0) {
    launch(rows.label_smoothing > 0 ? differentiate_kernel<T, true, true> : differentiate_kernel<T, false, true>);
  } else {
    launch(rows.label_smoothing > 0 ? differentiate_kernel<T, true, false> : differentiate_kernel<T, false, false>);
  }
  check_launch("computing losses");
}
template void differentiate_rows(const Context& context, const LossRows<float>& rows);
template void differentiate_rows(const Context& context, const LossRows<__nv_bfloat16>& rows);

template <class T>
void cap_rows(const Context& context, const LossRows<T>& rows) {
  cap_kernel<T><<<blocks_for(rows.rows, 1), kThreads, 0, stream_of(context)>>>(rows);
  check_launch("capping logits");
}
template void cap_rows(const Context& context, const LossRows<float>& rows);
template void cap_rows(const Context& context, const LossRows<__nv_bfloat16>& rows);

void add_totals(const Context& context, const TokenResult* results, const float* weights, int64_t count,
                const int32_t* present, LossTotals* totals) {
  add_totals_kernel<<<1, kTotalsThreads, 0, stream_of(context)>>>(results, weights, count, present, totals);
  check_launch("adding losses");
}

}  // namespace hone::cuda
