// What the kernels for sequences that add one token share: their arguments, and the softmax of a part of the keys.
// Included by *_cuda.cu only.
#pragma once

#include "ops/attention/general/attention_cuda.h"

namespace hone::cuda {

constexpr int kDecodeThreads = 256, kDecodeWarps = kDecodeThreads / 32;
constexpr int kPartKeys = 256;

template <class T>
struct DecodingArgs {
  const T *q, *k, *v;  ///< k and v are the cache
  T* out;
  float* lse;    ///< [Hq, T], or null
  float* sums;   ///< [N, Hq, parts, Dv]: Σ exp(score − largest) v of a part
  float* stats;  ///< [N, Hq, parts, 2]: the largest score of a part, Σ exp(score − largest)
  const int32_t *cu_seqlens, *lengths;
  int64_t tokens, capacity;
  int num_heads, num_kv_heads, head_dim, v_head_dim, parts;
  float scale;
  int64_t window;

  /// Whether sequence n adds one token, and it fits.
  __device__ bool decodes(int n) const { return cu_seqlens[n + 1] - cu_seqlens[n] == 1 && lengths[n] < capacity; }
  /// The first position that the new token of sequence n attends to; the token is at lengths[n].
  __device__ int64_t first_key(int n) const {
    return window > 0 ? max(lengths[n] - window + 1, int64_t{0}) : int64_t{0};
  }
  struct Keys {
    int64_t begin;  ///< the first position
    int count;      ///< none: at most 0
  };
  /// The positions of a part that the new token of sequence n attends to.
  __device__ Keys keys_of(int n, int part) const {
    if (!decodes(n)) return {0, 0};
    const int64_t begin = max(int64_t{part} * kPartKeys, first_key(n));
    return {begin, static_cast<int>(min(int64_t{part + 1} * kPartKeys, int64_t{lengths[n]} + 1) - begin)};
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
