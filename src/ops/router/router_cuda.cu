#include "kernels/cuda/rows/chunk_sums_cuda.h"
#include "ops/router/router.h"
#include "ops/router/router_logits_cuda.h"
#include "ops/router/router_rows_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
/// Tokens of a CTA: fixed, so that statistics do not depend on the device. Without statistics each warp has one, since
/// the tokens may be few.
constexpr int64_t kTokensPerBlock = 32;

template <class T>
struct ChoiceRows {
  const float* logits;          // [T, E]
  const float* selection_bias;  // [E] or null
  const int32_t* given_ids;
  int32_t* ids;
  T* weights;
  float* partial;  // [blocks, 2 E + 2]: counts, sums of p, entropy, z; or null
  int64_t tokens, tokens_per_block;
  int experts, top_k;
  RouterRule rule;
  bool by_scores;  // chooses_by_scores
};

/// Maps floats to unsigned integers of the same order; NaN is lowest, both zeros are equal. Never 0.
__device__ inline uint32_t ordered(float value) {
  if (isnan(value)) value = -CUDART_INF_F;
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The two largest of some values.
struct TopTwo {
  float best, second;

  __device__ TopTwo() { best = second = -CUDART_INF_F; }

  __device__ void take(float other_best, float other_second) {
    second = fmaxf(fminf(best, other_best), fmaxf(second, other_second));
    best = fmaxf(best, other_best);
  }

  __device__ void over_warp() {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other_best = __shfl_xor_sync(0xffffffffu, best, offset);
      take(other_best, __shfl_xor_sync(0xffffffffu, second, offset));
    }
  }
};

/// The index of the largest key of the warp's lanes, of equal ones the lowest.
__device__ inline uint32_t index_of_largest(uint32_t key, uint32_t index) {
  const uint32_t largest = __reduce_max_sync(0xffffffffu, key);
  return __reduce_min_sync(0xffffffffu, key == largest ? index : UINT32_MAX);
}

/// The groups that a token keeps, as bits, from its c.
template <int kPerLane>
__device__ uint32_t kept_groups(const float (&c)[kPerLane], const RouterRule& rule, int group_size) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint32_t key = 0;  // lane g holds group g
  for (int g = 0; g < rule.groups; ++g) {
    TopTwo top;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int place = LogitRow<kPerLane>::expert(i) - g * group_size;
      if (place >= 0 && place < group_size) top.take(c[i], -CUDART_INF_F);
    }
    top.over_warp();
    const float score = rule.group_score == GroupScore::kLargest ? top.best : top.best + top.second;
    if (lane == g) key = ordered(score);
  }
  uint32_t kept = 0;
  for (int j = 0; j < rule.kept_groups; ++j) {
    const uint32_t chosen = index_of_largest(key, static_cast<uint32_t>(lane));
    kept |= 1u << chosen;
    if (lane == static_cast<int>(chosen)) key = 0;
  }
  return kept;
}

/// c of all experts; -infinity for groups that are not kept.
template <class T, int kPerLane>
__device__ void form_choice(LogitRow<kPerLane>& row, const ChoiceRows<T>& a, float (&c)[kPerLane]) {
  const bool softmax = a.rule.scores == RouterScores::kSoftmax;
  if (softmax && a.by_scores) row.distribute(c);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (!softmax) c[i] = row.score(row.logits[i]);
    if (!a.by_scores) c[i] = row.logits[i];
    if (a.selection_bias != nullptr && row.expert(i) < a.experts) c[i] += a.selection_bias[row.expert(i)];
  }
  if (a.rule.groups == 1) return;
  const int group_size = a.experts / static_cast<int>(a.rule.groups);
  const uint32_t kept = kept_groups(c, a.rule, group_size);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int group = min(row.expert(i) / group_size, 31);
    if ((kept >> group & 1u) == 0) c[i] = -CUDART_INF_F;
  }
}

/// Writes the experts with the largest c, of equal ones the lowest first.
template <class T, int kPerLane>
__device__ void choose(LogitRow<kPerLane>& row, const ChoiceRows<T>& a, int32_t* ids) {
  float c[kPerLane];
  form_choice(row, a, c);
  uint32_t keys[kPerLane];  // 0: no such expert, or chosen
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) keys[i] = row.expert(i) < a.experts ? ordered(c[i]) : 0;
  for (int j = 0; j < a.top_k; ++j) {
    uint32_t best = 0;
    uint32_t expert = UINT32_MAX;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (keys[i] <= best) continue;
      best = keys[i];
      expert = static_cast<uint32_t>(row.expert(i));
    }
    const uint32_t chosen = index_of_largest(best, expert);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (static_cast<uint32_t>(row.expert(i)) == chosen) keys[i] = 0;
    }
    if (threadIdx.x % 32 == 0) ids[j] = static_cast<int32_t>(chosen);
  }
}

/// One warp per token, in a loop over tokens.
template <class T, int kPerLane>
__global__ void __launch_bounds__(kThreads) choose_experts(const ChoiceRows<T> a) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  float counts[kPerLane] = {}, prob_sum[kPerLane] = {}, entropy = 0.0f, z = 0.0f;
  const int64_t begin = int64_t{blockIdx.x} * a.tokens_per_block, end = min(a.tokens, begin + a.tokens_per_block);
  for (int64_t n = begin + warp; n < end; n += kWarps) {
    const float* logits = a.logits + n * a.experts;
    int32_t* ids = a.ids + n * a.top_k;
    LogitRow<kPerLane> row(logits, a.experts, a.rule.scores);
    if (a.given_ids == nullptr) choose(row, a, ids);
    __syncwarp();
    float p[kPerLane];
    const float token_entropy = row.distribute(p);
    // s of the j-th choice. NaN for invalid experts, so that the loss becomes NaN; their id becomes 0.
    const auto score = [&](int j) {
      const int32_t id = a.given_ids != nullptr ? a.given_ids[n * a.top_k + j] : ids[j];
      const bool exists = id >= 0 && id < a.experts;
      if (a.given_ids != nullptr) ids[j] = exists ? id : 0;
      return exists ? row.score(logits[id]) : CUDART_NAN_F;
    };
    float sum = 0.0f;
    for (int j = lane; j < a.top_k; j += 32) sum += score(j);
    sum = a.rule.normalise ? warp_sum(sum) + kRouterEpsilon : 1.0f;
    if (a.rule.normalise && sum < a.rule.least_sum) sum = a.rule.least_sum;
    for (int j = lane; j < a.top_k; j += 32) {
      a.weights[n * a.top_k + j] = from_float<T>(score(j) / sum * a.rule.scale);
    }
    __syncwarp();
    if (a.partial == nullptr) continue;
    entropy += token_entropy;
    const float log_sum = row.log_sum_exp();
    z += log_sum * log_sum;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) prob_sum[i] += p[i];
    for (int j = 0; j < a.top_k; ++j) {
      const int id = ids[j];
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) counts[i] += row.expert(i) == id ? 1.0f : 0.0f;
    }
  }
  if (a.partial == nullptr) return;
  extern __shared__ float sums[];  // [warps, 2 E + 2]
  const int columns = 2 * a.experts + 2;
  float* own = sums + warp * columns;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = LogitRow<kPerLane>::expert(i);
    if (expert >= a.experts) continue;
    own[expert] = counts[i];
    own[a.experts + expert] = prob_sum[i];
  }
  if (lane == 0) {
    own[columns - 2] = entropy;
    own[columns - 1] = z;
  }
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < columns; c += kThreads) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w * columns + c];
    a.partial[int64_t{blockIdx.x} * columns + c] = sum;
  }
}

}  // namespace

void router(const Context& context, const RouterArgs& args) {
  const int64_t tokens = args.x.shape[0], experts = args.weight.shape[0];
  const int64_t tokens_per_block = args.statistics.wanted() ? kTokensPerBlock : kWarps;
  const int64_t blocks = (tokens + tokens_per_block - 1) / tokens_per_block, columns = 2 * experts + 2;
  ArenaScope scratch(context.scratch());
  const Tensor logits = scratch.take({tokens, experts}, DType::kF32);
  Tensor partial;
  if (args.statistics.wanted()) partial = scratch.take({blocks, columns}, DType::kF32);
  router_logits(context, args.x, args.weight, args.bias, logits);
  if (context.dry() || tokens == 0) return;
  cuda::dispatch_float(args.weights.dtype, [&](auto element) {
    using T = decltype(element);
    const ChoiceRows<T> rows{.logits = elements<float>(logits),
                             .selection_bias = elements<float>(args.selection_bias),
                             .given_ids = elements<int32_t>(args.given_ids),
                             .ids = elements<int32_t>(args.ids),
                             .weights = elements<T>(args.weights),
                             .partial = elements<float>(partial),
                             .tokens = tokens,
                             .tokens_per_block = tokens_per_block,
                             .experts = static_cast<int>(experts),
                             .top_k = static_cast<int>(args.ids.shape[1]),
                             .rule = args.rule,
                             .by_scores = chooses_by_scores(args.rule, args.selection_bias.defined())};
    const size_t shared = partial.defined() ? static_cast<size_t>(kWarps * columns) * sizeof(float) : 0;
    with_logits_per_lane(experts, [&](auto per_lane) {
      const auto kernel = &choose_experts<T, per_lane()>;
      if (shared > 48 << 10) {
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
              "requesting shared memory");
      }
      kernel<<<blocks_for(blocks, 1), kThreads, shared, stream_of(context)>>>(rows);
    });
  });
  check_launch("choosing experts");
  if (!partial.defined()) return;
  const RouterStatistics& statistics = args.statistics;
  sum_chunks(context, partial, {{statistics.counts, 1.0f}, {statistics.prob_sum, 1.0f}, {statistics.token_sums, 1.0f}});
}

}  // namespace hone::cuda
