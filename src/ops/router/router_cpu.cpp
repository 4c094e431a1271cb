#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/router/router.h"

namespace hone::cpu {

namespace {

constexpr int64_t kTokensPerTask = 32;

/// logits [T, E] = x wᵀ + bias.
void router_logits(ThreadPool& pool, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& logits) {
  const RowMath& math = row_math();
  const int64_t experts = weight.shape[0];
  if (bias.defined()) {
    pool.parallel_ranges(x.shape[0], kTokensPerTask, [&](int64_t row, int64_t end) {
      for (; row < end; ++row) {
        for_row_blocks(experts, [&](int64_t begin, int64_t n) {
          float buffer[kRowBlock];
          store_block(math, load_block(math, bias, begin, buffer, n), logits, row * experts + begin, n);
        });
      }
    });
  }
  gemm(pool, {.m = x.shape[0],
              .n = experts,
              .k = x.shape[1],
              .a = matrix(x),
              .b = transposed(matrix(weight)),
              .c = logits.data,
              .c_dtype = DType::kF32,
              .ldc = experts,
              .beta = bias.defined() ? 1.0f : 0.0f});
}

/// log Σ exp of a row.
float log_sum_exp(const RowMath& math, const float* logits, int64_t n) {
  const float largest = math.maximum(logits, n);
  return largest + std::log(math.exp_sums(logits, largest, n).sum);
}

/// The measurements of a token.
struct TokenMeasures {
  float entropy = 0;  ///< entropy of p, nats
  float z = 0;        ///< (log Σ exp(logits))²
};

/// Converts logits to probabilities in place; their entropy is log Z − Σ p · (logit − max).
TokenMeasures softmax_row(const RowMath& math, float* p, int64_t n) {
  const float largest = math.maximum(p, n);
  const ExpSums sums = math.exp_sums(p, largest, n);
  math.scaled_exp(1.0f / sums.sum, largest, p, p, n);
  const float log_sum = std::log(sums.sum);
  return {log_sum - sums.weighted / sums.sum, (largest + log_sum) * (largest + log_sum)};
}

/// 1 / (Σ s + epsilon), which normalises sigmoids to a distribution.
float inverse_of_sum(const float* s, int64_t n) {
  float sum = 0.0f;
  for (int64_t e = 0; e < n; ++e) sum += s[e];
  return 1.0f / (sum + kRouterEpsilon);
}

/// Converts sigmoids to the distribution p in place; returns its entropy in nats: −Σ p · log p.
float distribution_row(const RowMath& math, float* s, int64_t n) {
  math.scale(inverse_of_sum(s, n), s, s, n);
  float entropy = 0.0f;
  for (int64_t e = 0; e < n; ++e) entropy -= s[e] > 0.0f ? s[e] * std::log(s[e]) : 0.0f;
  return entropy;
}

/// The k largest values, by insertion into a sorted list; equal values keep their order. With NaN the choice is
/// arbitrary, but still k different indices.
void top_k_row(const float* values, int64_t n, int32_t* ids, int64_t k) {
  int64_t found = 0;
  for (int64_t e = 0; e < n; ++e) {
    if (found == k && !(values[e] > values[ids[k - 1]])) continue;
    int64_t at = found < k ? found++ : k - 1;
    for (; at > 0 && values[ids[at - 1]] < values[e]; --at) ids[at] = ids[at - 1];
    ids[at] = static_cast<int32_t>(e);
  }
}

float score_of_group(const float* c, int64_t n, GroupScore score) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  float best = kNone, second = kNone;
  for (int64_t e = 0; e < n; ++e) {
    second = std::max(second, std::min(best, c[e]));
    best = std::max(best, c[e]);
  }
  return score == GroupScore::kLargest ? best : best + second;
}

/// Overwrites c of all groups except the best, so that no expert of theirs is chosen.
void mask_groups(const RouterRule& rule, float* c, int64_t experts) {
  const int64_t size = experts / rule.groups;
  std::array<float, kMaxRouterGroups> scores{};
  for (int64_t g = 0; g < rule.groups; ++g) {
    scores[static_cast<size_t>(g)] = score_of_group(c + g * size, size, rule.group_score);
  }
  std::array<int32_t, kMaxRouterGroups> kept{};
  top_k_row(scores.data(), rule.groups, kept.data(), rule.kept_groups);
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (int64_t g = 0; g < rule.groups; ++g) {
    const auto end = kept.begin() + rule.kept_groups;
    if (std::find(kept.begin(), end, static_cast<int32_t>(g)) == end) std::fill_n(c + g * size, size, kNever);
  }
}

/// Chooses the experts of one token from its scores or logits (chooses_by_scores); c is scratch of E floats.
void choose_row(const RowMath& math, const RouterArgs& args, const float* scores, float* c, int32_t* ids) {
  const int64_t experts = args.weight.shape[0], k = args.ids.shape[1];
  const bool biased = args.selection_bias.defined(), grouped = args.rule.groups > 1;
  if (!biased && !grouped) return top_k_row(scores, experts, ids, k);
  if (biased) {
    math.add(scores, args.selection_bias.as<float>(), c, experts);
  } else {
    std::copy_n(scores, experts, c);
  }
  if (grouped) mask_groups(args.rule, c, experts);
  top_k_row(c, experts, ids, k);
}

/// Processes one token: writes ids and weights, and replaces its logits by the distribution p.
template <class T>
TokenMeasures route_row(const RowMath& math, const RouterArgs& args, int64_t n, float* row, float* c) {
  const int64_t experts = args.weight.shape[0], k = args.ids.shape[1];
  const bool softmax = args.rule.scores == RouterScores::kSoftmax;
  const bool by_scores = chooses_by_scores(args.rule, args.selection_bias.defined());
  int32_t* ids = args.ids.as<int32_t>() + n * k;
  TokenMeasures measures;
  if (!softmax) {
    const float log_sum = args.statistics.wanted() ? log_sum_exp(math, row, experts) : 0.0f;
    measures.z = log_sum * log_sum;
    math.sigmoid(row, row, experts);
  } else if (by_scores) {
    measures = softmax_row(math, row, experts);
  }
  if (!args.given_ids.defined()) {
    choose_row(math, args, row, c, ids);
  } else {
    const int32_t* given = args.given_ids.as<int32_t>() + n * k;
    HONE_ASSERT(std::all_of(given, given + k, [&](int32_t e) { return e >= 0 && e < experts; }));
    std::copy(given, given + k, ids);
  }
  if (!by_scores) measures = softmax_row(math, row, experts);
  float sum = args.rule.normalise ? kRouterEpsilon : 1.0f;
  for (int64_t j = 0; args.rule.normalise && j < k; ++j) sum += row[ids[j]];
  if (args.rule.normalise) sum = std::max(sum, args.rule.least_sum);
  T* weights = args.weights.as<T>() + n * k;
  for (int64_t j = 0; j < k; ++j) weights[j] = T(row[ids[j]] / sum * args.rule.scale);
  if (!softmax && args.statistics.wanted()) measures.entropy = distribution_row(math, row, experts);
  return measures;
}

/// Sums columns of p over the tokens in increasing order, so the sums do not depend on the threads.
void add_statistics(ThreadPool& pool, const RouterArgs& args, const Tensor& probabilities,
                    const TokenMeasures* measures) {
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
  double entropy = 0.0, z = 0.0;
  for (int64_t n = 0; n < tokens; ++n) {
    entropy += static_cast<double>(measures[n].entropy);
    z += static_cast<double>(measures[n].z);
  }
  args.statistics.token_sums.as<float>()[0] += static_cast<float>(entropy);
  args.statistics.token_sums.as<float>()[1] += static_cast<float>(z);
}

/// ds of the auxiliary loss, which is Σ_e p_e · factor · f_e: with softmax p is s, with sigmoid s / Σ s.
void aux_scores_grad_row(const RouterGradArgs& args, float factor, const float* s, float* ds) {
  const int64_t experts = args.weight.shape[0];
  const float* fractions = args.aux.fractions.as<float>();
  for (int64_t e = 0; e < experts; ++e) ds[e] = factor * fractions[e];
  if (args.rule.scores == RouterScores::kSoftmax) return;
  const float inverse = inverse_of_sum(s, experts);
  float dot = 0.0f;
  for (int64_t e = 0; e < experts; ++e) dot += s[e] * ds[e];
  for (int64_t e = 0; e < experts; ++e) ds[e] = (ds[e] - dot * inverse) * inverse;
}

/// factor · d z / d logits of one token = factor · 2 · log Σ exp · softmax.
void z_grad_row(const RowMath& math, float factor, const float* logits, float* gradient, int64_t n) {
  const float log_sum = log_sum_exp(math, logits, n);
  math.scaled_exp(2.0f * factor * log_sum, log_sum, logits, gradient, n);
}

/// d loss / d logits of one token, in place of its scores s; ds is scratch of E floats.
template <class T>
void logits_grad_row(const RouterGradArgs& args, float aux_factor, int64_t n, float* s, float* ds) {
  const int64_t k = args.ids.shape[1], experts = args.weight.shape[0];
  const int32_t* ids = args.ids.as<int32_t>() + n * k;
  const T* dw = args.dweights.as<T>() + n * k;
  if (args.aux.fractions.defined()) {
    aux_scores_grad_row(args, aux_factor, s, ds);
  } else {
    std::fill_n(ds, experts, 0.0f);
  }
  float mean = 0.0f, factor = args.rule.scale;
  if (args.rule.normalise) {
    float sum = kRouterEpsilon;
    for (int64_t j = 0; j < k; ++j) sum += s[ids[j]];
    const bool grows = sum >= args.rule.least_sum;  // else the weights are divided by a constant
    for (int64_t j = 0; grows && j < k; ++j) mean += static_cast<float>(dw[j]) * s[ids[j]] / sum;
    factor /= std::max(sum, args.rule.least_sum);
  }
  for (int64_t j = 0; j < k; ++j) ds[ids[j]] += (static_cast<float>(dw[j]) - mean) * factor;
  if (args.rule.scores == RouterScores::kSigmoid) {
    for (int64_t e = 0; e < experts; ++e) s[e] *= (1.0f - s[e]) * ds[e];
    return;
  }
  float dot = 0.0f;
  for (int64_t e = 0; e < experts; ++e) dot += s[e] * ds[e];
  for (int64_t e = 0; e < experts; ++e) s[e] *= ds[e] - dot;
}

/// Calls body(token, thread) for all tokens.
template <class Body>
void for_tokens(ThreadPool& pool, int64_t tokens, const Body& body) {
  pool.parallel_for((tokens + kTokensPerTask - 1) / kTokensPerTask, [&](int64_t task, int thread) {
    const int64_t begin = task * kTokensPerTask, end = std::min(tokens, begin + kTokensPerTask);
    for (int64_t n = begin; n < end; ++n) body(n, thread);
  });
}

}  // namespace

void router(const Context& context, const RouterArgs& args) {
  const int64_t tokens = args.x.shape[0], experts = args.weight.shape[0];
  ArenaScope scratch(context.scratch());
  const Tensor probabilities = scratch.take({tokens, experts}, DType::kF32);
  const Tensor measures = scratch.take({tokens, 2}, DType::kF32);
  const Tensor choice = scratch.take({context.threads(), experts}, DType::kF32);
  context.launch([=](ThreadPool& pool) {
    router_logits(pool, args.x, args.weight, args.bias, probabilities);
    const RowMath& math = row_math();
    auto* const of_tokens = reinterpret_cast<TokenMeasures*>(measures.as<float>());
    dispatch_float(args.weights.dtype, [&](auto element) {
      for_tokens(pool, tokens, [&](int64_t n, int thread) {
        of_tokens[n] = route_row<decltype(element)>(math, args, n, probabilities.as<float>() + n * experts,
                                                    choice.as<float>() + thread * experts);
      });
    });
    if (args.statistics.wanted()) add_statistics(pool, args, probabilities, of_tokens);
  });
}

void router_grad(const Context& context, const RouterGradArgs& args) {
  const int64_t tokens = args.x.shape[0], hidden = args.x.shape[1], experts = args.weight.shape[0];
  if (!args.dx.wanted() && !args.dweight.wanted() && !args.dbias.wanted()) return;
  ArenaScope scratch(context.scratch());
  const Tensor dlogits = scratch.take({tokens, experts}, DType::kF32);
  const Tensor ds = scratch.take({context.threads(), 2, experts}, DType::kF32);
  context.launch([=](ThreadPool& pool) {
    router_logits(pool, args.x, args.weight, args.bias, dlogits);
    const RowMath& math = row_math();
    const RouterAuxLoss& aux = args.aux;
    const float aux_factor = aux.fractions.defined() ? aux.scalars->aux_scale * static_cast<float>(experts) /
                                                           static_cast<float>(aux.num_layers * tokens)
                                                     : 0.0f;
    const RouterZLoss& z = args.z_loss;
    const bool has_z = z.coefficient != 0;
    const float z_factor =
        has_z ? z.coefficient * static_cast<float>(z.scalars->token_share) / static_cast<float>(z.num_layers * tokens)
              : 0.0f;
    dispatch_float(args.dweights.dtype, [&](auto element) {
      for_tokens(pool, tokens, [&](int64_t n, int thread) {
        float* s = dlogits.as<float>() + n * experts;
        float* const own = ds.as<float>() + thread * 2 * experts;
        if (has_z) z_grad_row(math, z_factor, s, own + experts, experts);
        if (args.rule.scores == RouterScores::kSoftmax) {
          softmax_row(math, s, experts);
        } else {
          math.sigmoid(s, s, experts);
        }
        logits_grad_row<decltype(element)>(args, aux_factor, n, s, own);
        if (has_z) math.add(s, own + experts, s, experts);
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
    if (args.dbias.wanted()) sum_over_rows(pool, dlogits, args.dbias);
  });
}

}  // namespace hone::cpu
