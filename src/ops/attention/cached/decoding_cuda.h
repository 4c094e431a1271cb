// What the kernels for sequences that add one token share: their arguments, and the softmax of a part of the keys.
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
  float* lse;    ///< [Hq, T], or null
  float* sums;   ///< [N, Hq, parts, Dv]: Σ exp(score − largest) v of a part
  float* stats;  ///< [N, Hq, parts, 2]: the largest score of a part, Σ exp(score − largest)
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

/// scores = exp(scores − largest) of each head, one warp per head, and 0 for keys that the part lacks; writes the
/// part's statistics.
template <int kStride>
__device__ inline void exponentiate(float (*scores)[kStride], int heads, int keys, float* stats, int64_t stats_stride) {
  const int lane = threadIdx.x % 32;
  for (int head = threadIdx.x / 32; head < heads; head += kDecodeWarps) {
    float largest = -INFINITY, sum = 0.0f;
    for (int key = lane; key < keys; key += 32) largest = fmaxf(largest, scores[head][key]);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    }
    for (int key = lane; key < keys; key += 32) {
      scores[head][key] = expf(scores[head][key] - largest);
      sum += scores[head][key];
    }
    for (int key = keys + lane; key < kPartKeys; key += 32) scores[head][key] = 0.0f;
    sum = warp_sum(sum);
    if (lane == 0) {
      stats[head * stats_stride] = largest;
      stats[head * stats_stride + 1] = sum;
    }
  }
}

}  // namespace hone::cuda
