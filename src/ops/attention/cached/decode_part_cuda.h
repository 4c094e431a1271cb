// One part of the keys of a sequence that adds one token, on tensor cores: scores and the sum of values of up to 16
// heads that share keys. Each warp has 32 of the part's 256 keys. Nothing is staged in shared memory: a lane loads 16
// bytes of a row at a time, and the elements of a head are numbered so that these are its operands.
//
//   scores   A: heads, B: keys. Of 32 elements of a head, lane 4 g + t has elements 8 t to 8 t + 7 of key g, which are
//            its B of two products over 16; A takes the same numbering.
//   values   A: probabilities, B: values. Of 64 columns, lane 4 g + t has columns 8 g to 8 g + 7 of keys 2 t, 2 t + 1,
//            2 t + 8, 2 t + 9: for product j of 8, column n of B is column 8 n + j.
//
// With tensor cores here and in prefill, 24 layers of Qwen3-30B-A3B answer 64 requests of 512 + 256 tokens at 5,220
// tokens a second on one H200 instead of 3,508 (bench/results/h200-serve-2026-11-30.txt).
// Included by *_cuda.cu only.
#pragma once

#include "kernels/cuda/ptx_cuda.h"
#include "ops/attention/cached/decoding_cuda.h"

namespace hone::cuda {

/// The largest head that decode_part_tensor_kernel is compiled for.
inline constexpr int kMostTensorDim = 256;

/// Whether decode_part_tensor_kernel supports these head sizes, of at most kMostTensorDim.
inline bool tensor_cores_serve(int head_dim, int v_head_dim) { return head_dim % 32 == 0 && v_head_dim % 64 == 0; }

#ifdef __CUDACC__

/// 16 bytes of bfloat16, or zeros.
__device__ inline uint4 load_or_zero(const __nv_bfloat16* from, bool exists) {
  return exists ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
}

template <int kDim>
__global__ void __launch_bounds__(kDecodeThreads) decode_part_tensor_kernel(DecodingArgs<__nv_bfloat16> args) {
  constexpr int kHeads = 16, kChunks = (kDim + 31) / 32, kKeys = kPartKeys / kDecodeWarps,
                kColumns = kDim < 128 ? 64 : 128;
  constexpr int kSums = kColumns / 64 * 8 * 4;
  constexpr int kStride = kPartKeys + 8;  // in scores: the rows of a product are in different banks
  __shared__ union {
    float scores[kHeads][kStride];
    float sums[kDecodeWarps / 2][kSums][32];
  } shared;
  const int part = blockIdx.x, kv_head = blockIdx.y, n = blockIdx.z, dim = args.head_dim, v_dim = args.v_head_dim;
  const auto part_keys = args.keys_of(n, part);
  const int keys = part_keys.count;
  if (keys <= 0) return;

  const int64_t k_stride = int64_t{args.num_kv_heads} * dim, v_stride = int64_t{args.num_kv_heads} * v_dim;
  const __nv_bfloat16* k = args.k + kv_head * dim;
  const __nv_bfloat16* v = args.v + kv_head * v_dim;
  const int group = args.num_heads / args.num_kv_heads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4, first_key = warp * kKeys;
  for (int done = 0; done < group; done += kHeads) {
    const int heads = min(group - done, kHeads), head = kv_head * group + done;
    const int64_t at = (int64_t{n} * args.num_heads + head) * args.parts + part;  // index of the first head's part
    const __nv_bfloat16* q = args.q + (int64_t{args.cu_seqlens[n]} * args.num_heads + head) * dim;
    uint4 low[kChunks], high[kChunks];  // heads g and g + 8
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int element = 32 * c + 8 * t;
      low[c] = load_or_zero(q + g * dim + element, g < heads && element < dim);
      high[c] = load_or_zero(q + (g + 8) * dim + element, g + 8 < heads && element < dim);
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
      const int key = first_key + 8 * j + g;
      const __nv_bfloat16* row = k + part_keys.row(key) * k_stride + 8 * t;
      float s[4] = {};
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint4 x = load_or_zero(row + 32 * c, key < keys && 32 * c < dim);
        mma_m16n8k16(s, low[c].x, high[c].x, low[c].y, high[c].y, x.x, x.y);
        mma_m16n8k16(s, low[c].z, high[c].z, low[c].w, high[c].w, x.z, x.w);
      }
      const int column = first_key + 8 * j + 2 * t;
      *reinterpret_cast<float2*>(&shared.scores[g][column]) = {args.scale * s[0], args.scale * s[1]};
      *reinterpret_cast<float2*>(&shared.scores[g + 8][column]) = {args.scale * s[2], args.scale * s[3]};
    }
    __syncthreads();
    exponentiate(shared.scores, heads, keys, args.stats + 2 * at, 2 * args.parts);
    __syncthreads();
    uint32_t p[kKeys / 16][4];
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float* pair = &shared.scores[g + x % 2 * 8][first_key + 16 * i + 2 * t + x / 2 * 8];
        p[i][x] = g + x % 2 * 8 < heads ? pack_bf16(pair[0], pair[1]) : 0;
      }
    }
    for (int first = 0; first < v_dim; first += kColumns) {
      float sums[kSums / 4][4] = {};
#pragma unroll
      for (int i = 0; i < kKeys / 16; ++i) {
#pragma unroll
        for (int b = 0; b < kColumns / 64; ++b) {
          uint32_t rows[4][4];
#pragma unroll
          for (int x = 0; x < 4; ++x) {
            const int key = first_key + 16 * i + 2 * t + x % 2 + x / 2 * 8, column = first + 64 * b + 8 * g;
            reinterpret_cast<uint4&>(rows[x]) =
                load_or_zero(v + part_keys.row(key) * v_stride + column, key < keys && column < v_dim);
          }
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const uint32_t pick = j % 2 == 0 ? 0x5410 : 0x7632;  // the low or the high halves of two words
            mma_m16n8k16(sums[8 * b + j], p[i], __byte_perm(rows[0][j / 2], rows[1][j / 2], pick),
                         __byte_perm(rows[2][j / 2], rows[3][j / 2], pick));
          }
        }
      }
      // The warps' sums, in a fixed order: 4 to 0, 5 to 1, …; then 2 to 0 and 3 to 1; then 1 to 0.
#pragma unroll
      for (int warps = kDecodeWarps / 2; warps > 0; warps /= 2) {
        __syncthreads();
        if (warp >= warps && warp < 2 * warps) {
#pragma unroll
          for (int i = 0; i < kSums; ++i) shared.sums[warp - warps][i][lane] = sums[i / 4][i % 4];
        }
        __syncthreads();
        if (warp >= warps) continue;
#pragma unroll
        for (int i = 0; i < kSums; ++i) sums[i / 4][i % 4] += shared.sums[warp][i][lane];
      }
      if (warp != 0) continue;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        if (g + 8 * row >= heads) continue;
        float* out = args.sums + (at + int64_t{g + 8 * row} * args.parts) * v_dim + first + 16 * t;
#pragma unroll
        for (int b = 0; b < kColumns / 64; ++b) {
          if (first + 64 * b >= v_dim) continue;
#pragma unroll
          for (int j = 0; j < 16; j += 4) {  // columns 8 (2 t) + j of the first half, 8 (2 t + 1) + j − 8 of the second
            const int x = 2 * row + j / 8;
            const auto& of = sums[8 * b + j % 8];
            *reinterpret_cast<float4*>(out + 64 * b + j) = {of[x], sums[8 * b + j % 8 + 1][x],
                                                            sums[8 * b + j % 8 + 2][x], sums[8 * b + j % 8 + 3][x]};
          }
        }
      }
    }
    __syncthreads();
  }
}

#endif  // __CUDACC__

}  // namespace hone::cuda
