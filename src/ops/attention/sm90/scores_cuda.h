// Elementwise steps of attention's backward, from scores to P and dS, and the accumulation of dq across CTAs. Included
// by *_cuda.cu only.
#pragma once

#include "ops/attention/sm90/shape_cuda.h"

#ifdef __CUDACC__

namespace hone::cuda::sm90 {

/// Per-query values for the columns of a thread's accumulators.
template <int kSums>
struct OfQueries {
  float2 pairs[kSums / 4];

  __device__ explicit OfQueries(const float* of_queries) {
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      pairs[j] = *reinterpret_cast<const float2*>(of_queries + 8 * j + sums_column());
    }
  }
};

/// s = exp(scale · s − lse), with −lse · log2 e as the queries' shifts.
template <int kSums>
__device__ inline void make_probabilities(float (&s)[kSums], float scale_log2, const OfQueries<kSums>& shifts) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const float2 shift = shifts.pairs[i / 4];
    s[i] = exp2_approximate(fmaf(scale_log2, s[i], i % 2 == 0 ? shift.x : shift.y));
  }
}

/// p = 0 where a query (columns, from `query` on) does not attend to a key (rows, from `key` on).
template <int kSums>
__device__ inline void hide_unseen(float (&p)[kSums], int query, int key, int window) {
  const int offset = query + sums_column() - key - sums_row();
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const int distance = offset + 8 * j + x % 2 - 8 * (x / 2);
      if (distance < 0 || (window > 0 && distance >= window)) p[4 * j + x] = 0.0f;
    }
  }
}

/// p (dp − δ), packed like p.
template <int kSums>
__device__ inline void make_score_gradients(uint32_t (&packed)[kSums / 2], const float (&dp)[kSums],
                                            const uint32_t (&p)[kSums / 2], const OfQueries<kSums>& deltas) {
#pragma unroll
  for (int i = 0; i < kSums / 2; ++i) {
    const float2 of_pair = unpack_bf16(p[i]), delta = deltas.pairs[i / 2];
    packed[i] = pack_bf16(of_pair.x * (dp[2 * i] - delta.x), of_pair.y * (dp[2 * i + 1] - delta.y));
  }
}

/// Writes a warpgroup's dS for its 64 keys from `key` on to shared memory.
template <class Operand, int kSize>
__device__ inline void share(const Operand& gradients, const uint32_t (&packed)[kSize], int key) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % 128 / 32;
  // This lane's row among the four matrices of stmatrix: offset by 8 keys or not, by 8 queries or not.
  const int line = key + 16 * warp + 8 * (lane / 8 % 2) + lane % 8, more = lane / 16;
#pragma unroll
  for (int j = 0; j < kSize / 2; j += 2) {
    const uint32_t box = gradients.address + j / 8 * Operand::kBoxBytes;
    const int unit = (j % 8 + more) ^ (line % 8);
    stmatrix_x4(box + line * 128 + unit * 16, {packed[2 * j], packed[2 * j + 1], packed[2 * j + 2], packed[2 * j + 3]});
  }
}

/// Adds a warpgroup's part of dq to the sum in memory, or stores it if it is the first: each thread its own
/// accumulators, the first four at `at`.
template <int kSums>
__device__ inline void add_part(float* at, const float (&part)[kSums], bool first) {
#pragma unroll
  for (int i = 0; i < kSums; i += 4, at += 4 * 128) {
    if (first) {
      *reinterpret_cast<float4*>(at) = {part[i], part[i + 1], part[i + 2], part[i + 3]};
    } else {
      asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(at), "f"(part[i]),
                   "f"(part[i + 1]), "f"(part[i + 2]), "f"(part[i + 3])
                   : "memory");
    }
  }
}
/// part += the sum of the other CTAs.
template <int kSums>
__device__ inline void take_parts(const float* at, float (&part)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; i += 4, at += 4 * 128) {
    float4 before;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 : "=f"(before.x), "=f"(before.y), "=f"(before.z), "=f"(before.w)
                 : "l"(at)
                 : "memory");
    part[i] += before.x, part[i + 1] += before.y, part[i + 2] += before.z, part[i + 3] += before.w;
  }
}

}  // namespace hone::cuda::sm90

#endif  // __CUDACC__
