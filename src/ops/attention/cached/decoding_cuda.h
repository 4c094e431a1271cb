// What the kernels for sequences that add one token share: their arguments, the softmax of a part of the keys, and how
// parts are combined.
// Included by *_cuda.cu only.
#pragma once

#include "ops/attention/cached_keys_cuda.h"
#include "ops/attention/general/attention_cuda.h"

namespace hone::cuda {

constexpr int kDecodeThreads = 256, kDecodeWarps = kDecodeThreads / 32;
constexpr int kPartKeys = 2 * kCachePage;

template <class T>
struct DecodingArgs {
  const T *q, *k, *v;  ///< k and v are the pages of the cache
  T* out;
  float* lse;     ///< [Hq, T], or null
  float* sums;    ///< [N, Hq, parts, Dv]: Σ exp(score − largest) v of a part
  float* stats;   ///< [N, Hq, parts, 2]: the largest score of a part, Σ exp(score − largest)
  int* finished;  ///< [N, Hkv]: parts that are done, 0 before the launch
  const int32_t* cu_seqlens;
  CachedKeys cached;
  int64_t tokens;
  int num_heads, num_kv_heads, head_dim, v_head_dim, parts;
  float scale;
  int64_t window;

  /// Whether sequence n adds one token, and it fits.
  __device__ bool decodes(int n) const {
    return cu_seqlens[n + 1] - cu_seqlens[n] == 1 && cached.lengths[n] < cached.capacity();
  }
  /// The first position that the new token of sequence n attends to; the token is at lengths[n].
  __device__ int64_t first_key(int n) const {
    return window > 0 ? max(cached.lengths[n] - window + 1, int64_t{0}) : int64_t{0};
  }
  /// Keys of a part, which are in two pages.
  struct Keys {
    int count;              ///< none: at most 0
    int in_first;           ///< so many are in the first page
    int64_t first, second;  ///< what is added to a key of each page

    /// The row of a key, counted from the part's first one.
    __device__ int64_t row(int key) const { return key + (key < in_first ? first : second); }
  };
  /// The keys of a part that the new token of sequence n attends to.
  __device__ Keys keys_of(int n, int part) const {
    const int32_t* pages = cached.pages_of(n);
    const int64_t first = pages[2 * part], second = pages[min(2 * part + 1, cached.most_pages - 1)];
    if (!decodes(n)) return {0, 0, 0, 0};
    const int64_t part_begin = int64_t{part} * kPartKeys, begin = max(part_begin, first_key(n));
    const int64_t skipped = begin - part_begin, end = min(part_begin + kPartKeys, int64_t{cached.lengths[n]} + 1);
    return {static_cast<int>(end - begin), static_cast<int>(kCachePage - skipped), first * kCachePage + skipped,
            (second - 1) * kCachePage + skipped};
  }
};

#ifdef __CUDACC__

/// exp(score − largest) of a head's keys in a part, and 0 for those that the part lacks: lane l of the warp has keys
/// 64 i + 2 l and the next in p[i].
struct PartSoftmax {
  float2 p[kPartKeys / 64];
  float largest, sum;  ///< all lanes have them

  /// Writes largest and sum to a part's statistics.
  __device__ void write(float* stats) const {
    if (threadIdx.x % 32 != 0) return;
    stats[0] = largest;
    stats[1] = sum;
  }
};

/// Called by whole warps; `scores` of the first `keys` keys, aligned to 8 bytes.
__device__ inline PartSoftmax softmax_of(const float* scores, int keys) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  PartSoftmax result{.largest = -INFINITY, .sum = 0.0f};
#pragma unroll
  for (int i = 0; i < kPartKeys / 64; ++i) {
    const int key = 64 * i + 2 * lane;
    float2& pair = result.p[i];
    pair = reinterpret_cast<const float2*>(scores)[key / 2];
    if (key >= keys) pair.x = -INFINITY;
    if (key + 1 >= keys) pair.y = -INFINITY;
    result.largest = fmaxf(result.largest, fmaxf(pair.x, pair.y));
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    result.largest = fmaxf(result.largest, __shfl_xor_sync(0xffffffffu, result.largest, offset));
  }
#pragma unroll
  for (int i = 0; i < kPartKeys / 64; ++i) {
    float2& pair = result.p[i];
    pair = {expf(pair.x - result.largest), expf(pair.y - result.largest)};
    result.sum += pair.x + pair.y;
  }
  result.sum = warp_sum(result.sum);
  return result;
}

/// Called by all threads of a CTA that has written the sums and statistics of its part: the last one of the sequence
/// and these key-value heads combines the parts, in order, a warp a head.
template <int kDim, class T>
__device__ void join_parts(const DecodingArgs<T>& args, int n, int kv_head) {
  __shared__ bool is_last;
  const int first = static_cast<int>(args.first_key(n) / kPartKeys), last = args.cached.lengths[n] / kPartKeys;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(&args.finished[n * args.num_kv_heads + kv_head], 1) == last - first;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  const int group = args.num_heads / args.num_kv_heads, lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < group; i += kDecodeWarps) {
    const int head = kv_head * group + i;
    const int64_t at = (int64_t{n} * args.num_heads + head) * args.parts;
    const auto* stats = reinterpret_cast<const float2*>(args.stats) + at;
    float largest = -INFINITY, total = 0.0f;
    for (int part = first; part <= last; ++part) largest = fmaxf(largest, __ldcg(&stats[part]).x);
    float sums[kDim / 32] = {};
#pragma unroll 4
    for (int part = first; part <= last; ++part) {
      const float2 of_part = __ldcg(&stats[part]);
      const float factor = expf(of_part.x - largest);
      const float* from = args.sums + (at + part) * args.v_head_dim;
      total = fmaf(factor, of_part.y, total);
#pragma unroll
      for (int c = 0; c < kDim / 32; ++c) {
        const int column = lane + 32 * c;
        if (column < args.v_head_dim) sums[c] = fmaf(factor, __ldcg(from + column), sums[c]);
      }
    }
    if (args.lse != nullptr && lane == 0) args.lse[head * args.tokens + args.cu_seqlens[n]] = largest + logf(total);
    T* out = args.out + (int64_t{args.cu_seqlens[n]} * args.num_heads + head) * args.v_head_dim;
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) {
      const int column = lane + 32 * c;
      if (column < args.v_head_dim) out[column] = from_float<T>(sums[c] / total);
    }
  }
}

#endif  // __CUDACC__

}  // namespace hone::cuda
