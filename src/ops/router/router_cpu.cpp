#include <algorithm>
#include <cmath>

#include "ops/gemm/gemm.h"
#include "ops/router/router.h"
#include "ops/row_math/row_math.h"

namespace hone::cpu {

namespace {

constexpr int64_t kTokensPerTask = 32;

/// logits [T, E] = x wᵀ.
void router_logits(ThreadPool& pool, const Tensor& x, const Tensor& weight, const Tensor& logits) {
  gemm(pool, {.m = x.shape[0],
              .n = weight.shape[0],
              .k = x.shape[1],
              .a = matrix(x),
              .b = transposed(matrix(weight)),
              .c = logits.data,
              .c_dtype = DType::kF32,
              .ldc = weight.shape[0]});
}

/// Turns logits into probabilities in place; returns their entropy in nats: log Z − Σ p · (logit − max).
float softmax_row(const RowMath& math, float* p, int64_t n) {
  const float largest = math.maximum(p, n);
  const ExpSums sums = math.exp_sums(p, largest, n);
  math.scaled_exp(1.0f / sums.sum, largest, p, p, n);
  return std::log(sums.sum) - sums.weighted / sums.sum;
}

/// The k largest logits, by insertion into a sorted list: an equal value goes behind those of lower index. With NaN
/// the choice is arbitrary but still k different experts.
void top_k_row(const float* logits, int64_t n, int32_t* ids, int64_t k) {
  int64_t found = 0;
  for (int64_t e = 0; e < n; ++e) {
    if (found == k && !(logits[e] > logits[ids[k - 1]])) continue;
    int64_t at = found < k ? found++ : k - 1;
    for (; at > 0 && logits[ids[at - 1]] < logits[e]; --at) ids[at] = ids[at - 1];
    ids[at] = static_cast<int32_t>(e);
  }
}

float sum_at(const float* p, const int32_t* ids, int64_t k) {
  float sum = 0.0f;
  for (int64_t j = 0; j < k; ++j) sum += p[ids[j]];
  return sum;
}

/// Columns of p are summed over the tokens in rising order, so the sums do not depend on the threads.
void add_statistics(ThreadPool& pool, const RouterArgs& args, const Tensor& probabilities, const Tensor& entropies) {
  const int64_t tokens = args.x.shape[0], experts = args.weight.shape[0];
  const float* p = probabilities.as<float>();
  float* prob_sum = args.statistics.prob_sum.as<float>();
  constexpr int64_t kColumns = 16;  // a cache line
  pool.parallel_ranges(experts, kColumns, [&](int64_t begin, int64_t end) {
    double sums[kColumns] = {};
    for (int64_t n = 0; n < tokens; ++n) {
      for (int64_t e = begin; e < end; ++e) sums[e - begin] += static_cast<double>(p[n * experts + e]);
    }
    for (int64_t e = begin; e < end; ++e) prob_sum[e] += static_cast<float>(sums[e - begin]);
  });
  float* counts = args.statistics.counts.as<float>();
  const int32_t* ids = args.ids.as<int32_t>();
  for (int64_t i = 0; i < args.ids.numel(); ++i) counts[ids[i]] += 1.0f;
  double entropy = 0.0;
  for (int64_t n = 0; n < tokens; ++n) entropy += static_cast<double>(entropies.as<float>()[n]);
  *args.statistics.entropy.as<float>() += static_cast<float>(entropy);
}

/// d loss / d logits of one token, in place of its probabilities. With s = p at ids and S = Σ s:
/// ds_j = (dw_j − Σ_i dw_i · s_i / S) / S if weights are normalised, else dw_j; dp gathers ds and the auxiliary loss's
/// gradient; dlogits = p ∘ (dp − Σ_e p_e · dp_e).
template <class T>
void logits_grad_row(const RouterGradArgs& args, float aux_factor, int64_t n, float* p, float* dp) {
  const int64_t k = args.ids.shape[1], experts = args.weight.shape[0];
  const int32_t* ids = args.ids.as<int32_t>() + n * k;
  const T* dw = args.dweights.as<T>() + n * k;
  const float* fractions = args.aux.fractions.defined() ? args.aux.fractions.as<float>() : nullptr;
  for (int64_t e = 0; e < experts; ++e) dp[e] = fractions ? aux_factor * fractions[e] : 0.0f;
  float mean = 0.0f, inverse_sum = 1.0f;
  if (args.normalise) {
    inverse_sum = 1.0f / sum_at(p, ids, k);
    for (int64_t j = 0; j < k; ++j) mean += static_cast<float>(dw[j]) * p[ids[j]] * inverse_sum;
  }
  for (int64_t j = 0; j < k; ++j) dp[ids[j]] += (static_cast<float>(dw[j]) - mean) * inverse_sum;
  float dot = 0.0f;
  for (int64_t e = 0; e < experts; ++e) dot += p[e] * dp[e];
  for (int64_t e = 0; e < experts; ++e) p[e] *= dp[e] - dot;
}

}  // namespace

void router(const Context& context, const RouterArgs& args) {
  const int64_t tokens = args.x.shape[0], experts = args.weight.shape[0], k = args.ids.shape[1];
  ArenaScope scratch(context.scratch());
  const Tensor probabilities = scratch.take({tokens, experts}, DType::kF32);
  const Tensor entropies = scratch.take({tokens}, DType::kF32);
  context.launch([=](ThreadPool& pool) {
    router_logits(pool, args.x, args.weight, probabilities);
    const RowMath& math = row_math();
    dispatch_float(args.weights.dtype, [&](auto element) {
      using T = decltype(element);
      pool.parallel_ranges(tokens, kTokensPerTask, [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) {
          float* p = probabilities.as<float>() + n * experts;
          int32_t* ids = args.ids.as<int32_t>() + n * k;
          if (!args.given_ids.defined()) {
            top_k_row(p, experts, ids, k);
          } else {
            const int32_t* given = args.given_ids.as<int32_t>() + n * k;
            HONE_ASSERT(std::all_of(given, given + k, [&](int32_t e) { return e >= 0 && e < experts; }));
            std::copy(given, given + k, ids);
          }
          entropies.as<float>()[n] = softmax_row(math, p, experts);
          const float sum = args.normalise ? sum_at(p, ids, k) : 1.0f;
          for (int64_t j = 0; j < k; ++j) args.weights.as<T>()[n * k + j] = T(p[ids[j]] / sum);
        }
      });
    });
    if (args.statistics.wanted()) add_statistics(pool, args, probabilities, entropies);
  });
}

void router_grad(const Context& context, const RouterGradArgs& args) {
  const int64_t tokens = args.x.shape[0], hidden = args.x.shape[1], experts = args.weight.shape[0];
  if (!args.dx.wanted() && !args.dweight.wanted()) return;
  ArenaScope scratch(context.scratch());
  const Tensor dlogits = scratch.take({tokens, experts}, DType::kF32);
  const Tensor dp = scratch.take({context.threads(), experts}, DType::kF32);
  context.launch([=](ThreadPool& pool) {
    router_logits(pool, args.x, args.weight, dlogits);
    const RowMath& math = row_math();
    const RouterAuxLoss& aux = args.aux;
    const float aux_factor = aux.fractions.defined() ? aux.scalars->aux_scale * static_cast<float>(experts) /
                                                           static_cast<float>(aux.num_layers * tokens)
                                                     : 0.0f;
    dispatch_float(args.dweights.dtype, [&](auto element) {
      using T = decltype(element);
      pool.parallel_for((tokens + kTokensPerTask - 1) / kTokensPerTask, [&](int64_t task, int thread) {
        const int64_t begin = task * kTokensPerTask, end = std::min(tokens, begin + kTokensPerTask);
        for (int64_t n = begin; n < end; ++n) {
          float* p = dlogits.as<float>() + n * experts;
          softmax_row(math, p, experts);
          logits_grad_row<T>(args, aux_factor, n, p, dp.as<float>() + thread * experts);
        }
      });
    });
    if (args.dx.wanted()) {
      gemm(pool, {.m = tokens,
                  .n = hidden,
                  .k = experts,
                  .a = matrix(dlogits),
                  .b = matrix(args.weight),
                  .c = args.dx.dst.data,
                  .c_dtype = args.dx.dst.dtype,
                  .ldc = hidden,
                  .beta = args.dx.beta});
    }
    if (args.dweight.wanted()) {
      gemm(pool, {.m = experts,
                  .n = hidden,
                  .k = tokens,
                  .a = transposed(matrix(dlogits)),
                  .b = matrix(args.x),
                  .c = args.dweight.dst.data,
                  .c_dtype = args.dweight.dst.dtype,
                  .ldc = hidden,
                  .beta = args.dweight.beta});
    }
  });
}

}  // namespace hone::cpu
