#include "ops/router/router.h"
#include "ops/router/router_logits_cuda.h"
#include "ops/router/router_rows_cuda.h"
#include "ops/row_math/chunk_sums_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
/// Tokens of a block: fixed, so that statistics do not depend on the device.
constexpr int64_t kTokensPerBlock = 32;

template <class T>
struct ChoiceRows {
  const float* logits;  // [T, E]
  const int32_t* given_ids;
  int32_t* ids;
  T* weights;
  float* partial;  // [blocks, 2 E + 1]: counts, sums of p, entropy; or null
  int64_t tokens;
  int experts, top_k;
  bool normalise;
};

/// Orders floats as unsigned integers; NaN lowest, both zeros alike. Never 0.
__device__ inline uint32_t ordered(float value) {
  if (isnan(value)) value = -CUDART_INF_F;
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// Writes the experts with the largest logits, of equal ones the lowest first.
template <int kPerLane>
__device__ void choose(const LogitRow<kPerLane>& row, int experts, int top_k, int32_t* ids) {
  uint32_t keys[kPerLane];  // 0: no such expert, or chosen
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) keys[i] = row.expert(i) < experts ? ordered(row.logits[i]) : 0;
  for (int j = 0; j < top_k; ++j) {
    uint32_t best = 0;
    uint32_t expert = UINT32_MAX;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (keys[i] <= best) continue;
      best = keys[i];
      expert = static_cast<uint32_t>(row.expert(i));
    }
    const uint32_t largest = __reduce_max_sync(0xffffffffu, best);
    const uint32_t chosen = __reduce_min_sync(0xffffffffu, best == largest ? expert : UINT32_MAX);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (static_cast<uint32_t>(row.expert(i)) == chosen) keys[i] = 0;
    }
    if (threadIdx.x % 32 == 0) ids[j] = static_cast<int32_t>(chosen);
  }
}

/// A warp a token, one token after another.
template <class T, int kPerLane>
__global__ void __launch_bounds__(kThreads) choose_experts(const ChoiceRows<T> a) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  float counts[kPerLane] = {}, prob_sum[kPerLane] = {}, entropy = 0.0f;
  const int64_t begin = int64_t{blockIdx.x} * kTokensPerBlock, end = min(a.tokens, begin + kTokensPerBlock);
  for (int64_t n = begin + warp; n < end; n += kWarps) {
    const float* logits = a.logits + n * a.experts;
    int32_t* ids = a.ids + n * a.top_k;
    LogitRow<kPerLane> row(logits, a.experts);
    if (a.given_ids == nullptr) choose(row, a.experts, a.top_k, ids);
    __syncwarp();
    float p[kPerLane];
    const float token_entropy = row.softmax(p);
    // p of the j-th choice. Of experts that do not exist it is NaN, which shows in the loss; the first one stands for
    // them.
    const auto probability = [&](int j) {
      const int32_t id = a.given_ids != nullptr ? a.given_ids[n * a.top_k + j] : ids[j];
      const bool exists = id >= 0 && id < a.experts;
      if (a.given_ids != nullptr) ids[j] = exists ? id : 0;
      return exists ? row.probability(logits[id]) : CUDART_NAN_F;
    };
    float sum = 0.0f;
    for (int j = lane; j < a.top_k; j += 32) sum += probability(j);
    sum = a.normalise ? warp_sum(sum) : 1.0f;
    for (int j = lane; j < a.top_k; j += 32) a.weights[n * a.top_k + j] = from_float<T>(probability(j) / sum);
    __syncwarp();
    if (a.partial == nullptr) continue;
    entropy += token_entropy;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) prob_sum[i] += p[i];
    for (int j = 0; j < a.top_k; ++j) {
      const int id = ids[j];
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) counts[i] += row.expert(i) == id ? 1.0f : 0.0f;
    }
  }
  if (a.partial == nullptr) return;
  extern __shared__ float sums[];  // [warps, 2 E + 1]
  const int columns = 2 * a.experts + 1;
  float* own = sums + warp * columns;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = LogitRow<kPerLane>::expert(i);
    if (expert >= a.experts) continue;
    own[expert] = counts[i];
    own[a.experts + expert] = prob_sum[i];
  }
  if (lane == 0) own[columns - 1] = entropy;
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
  const int64_t blocks = (tokens + kTokensPerBlock - 1) / kTokensPerBlock, columns = 2 * experts + 1;
  ArenaScope scratch(context.scratch());
  const Tensor logits = scratch.take({tokens, experts}, DType::kF32);
  Tensor partial;
  if (args.statistics.wanted()) partial = scratch.take({blocks, columns}, DType::kF32);
  router_logits(context, args.x, args.weight, logits);
  if (context.dry() || tokens == 0) return;
  cuda::dispatch_float(args.weights.dtype, [&](auto element) {
    using T = decltype(element);
    const ChoiceRows<T> rows{.logits = elements<float>(logits),
                             .given_ids = elements<int32_t>(args.given_ids),
                             .ids = elements<int32_t>(args.ids),
                             .weights = elements<T>(args.weights),
                             .partial = elements<float>(partial),
                             .tokens = tokens,
                             .experts = static_cast<int>(experts),
                             .top_k = static_cast<int>(args.ids.shape[1]),
                             .normalise = args.normalise};
    const size_t shared = partial.defined() ? static_cast<size_t>(kWarps * columns) * sizeof(float) : 0;
    with_logits_per_lane(experts, [&](auto per_lane) {
      const auto kernel = &choose_experts<T, per_lane()>;
      if (shared > 48 << 10) {
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
              "asking for shared memory");
      }
      kernel<<<blocks_for(blocks, 1), kThreads, shared, stream_of(context)>>>(rows);
    });
  });
  check_launch("choosing experts");
  if (!partial.defined()) return;
  const RouterStatistics& statistics = args.statistics;
  sum_chunks(context, partial, {{statistics.counts, 1.0f}, {statistics.prob_sum, 1.0f}, {statistics.entropy, 1.0f}});
}

}  // namespace hone::cuda
