// The gradient of a thin factor: a sum over all rows. Bound by reading the wide matrix once; CTAs sum parts of the
// rows, which partial_sums_cuda.cu adds in order.
#include <algorithm>

#include "kernels/cuda/low_rank/low_rank_cuda.h"
#include "kernels/cuda/low_rank/low_rank_kernels_cuda.h"
#include "kernels/cuda/low_rank/partial_sums_cuda.h"

namespace hone::cuda {

namespace {

/// A CTA computes 64 columns over a part of the rows, 16 rows per warp at a time; a row is read 128 bytes at a time.
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kBlockColumns = 64;

struct FactorKernel {
  LowRankShape shape;
  RowMask mask;
  const float* thin;
  const __nv_bfloat16* wide;
  float* partial;  // [parts, r, N]
};

/// Element j of 8 in rows a and b, as a pair.
__device__ inline uint32_t column_pair(const uint4& a, const uint4& b, int j) {
  const uint32_t from_a = j / 2 == 0 ? a.x : j / 2 == 1 ? a.y : j / 2 == 2 ? a.z : a.w;
  const uint32_t from_b = j / 2 == 0 ? b.x : j / 2 == 1 ? b.y : j / 2 == 2 ? b.z : b.w;
  return __byte_perm(from_a, from_b, j % 2 == 0 ? 0x5410 : 0x7632);
}

template <int kTiles>
__global__ void __launch_bounds__(kThreads, 2) factor_kernel(FactorKernel k) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
  const int columns = k.shape.columns, rank = k.shape.rank;
  const int column = static_cast<int>(blockIdx.x) * kBlockColumns + group * 8;
  const int64_t stride = static_cast<int64_t>(gridDim.y) * kWarps * 16;
  const uint64_t key = lora_dropout_key(k.mask.scalars->seed, k.mask.stream_id);

  float sums[kTiles][8][4] = {};
  for (int64_t begin = (static_cast<int64_t>(blockIdx.y) * kWarps + warp) * 16; begin < k.shape.rows; begin += stride) {
    uint4 values[4];
    float thin[kTiles][2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = begin + 4 * quad + i;
      const bool inside = row < k.shape.rows;
      values[i] = load_eight(k.wide + row * columns + column, inside && column < columns);
#pragma unroll
      for (int half = 0; half < 2 * kTiles; ++half) {
        const int p = half * 8 + group;
        thin[half / 2][half % 2][i] = inside && p < rank ? __ldg(k.thin + row * rank + p) : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = min(begin + 4 * quad + i, k.shape.rows - 1);
      values[i] = masked(values[i], keep_bits(k.mask, key, mask_row(k.mask, row), column));
    }
    uint32_t a[kTiles][4];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float(&t)[2][4] = thin[tile];
      a[tile][0] = pack_bf16(t[0][0], t[0][1]), a[tile][1] = pack_bf16(t[1][0], t[1][1]);
      a[tile][2] = pack_bf16(t[0][2], t[0][3]), a[tile][3] = pack_bf16(t[1][2], t[1][3]);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t b0 = column_pair(values[0], values[1], j), b1 = column_pair(values[2], values[3], j);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        mma_m16n8k16(sums[tile][j], a[tile][0], a[tile][1], a[tile][2], a[tile][3], b0, b1);
      }
    }
  }

  // Sums of warps are added pairwise in a fixed tree.
  __shared__ float4 shared[kWarps / 2][kTiles * 8][32];
  for (int half = kWarps / 2; half > 0; half /= 2) {
    __syncthreads();
    if (warp >= half && warp < 2 * half) {
#pragma unroll
      for (int i = 0; i < kTiles * 8; ++i) {
        const float(&s)[4] = sums[i / 8][i % 8];
        shared[warp - half][i][lane] = make_float4(s[0], s[1], s[2], s[3]);
      }
    }
    __syncthreads();
    if (warp < half) {
#pragma unroll
      for (int i = 0; i < kTiles * 8; ++i) {
        const float4 other = shared[warp][i][lane];
        float(&s)[4] = sums[i / 8][i % 8];
        s[0] += other.x, s[1] += other.y, s[2] += other.z, s[3] += other.w;
      }
    }
  }
  if (warp != 0) return;
    // Column n of MMA tile j is column 8 n + j of the CTA.
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int p = tile * 16 + 8 * (i / 2) + group;
      const int to_column = static_cast<int>(blockIdx.x) * kBlockColumns + (2 * quad + i % 2) * 8;
      if (p >= rank || to_column >= columns) continue;
      float* to = k.partial + (static_cast<int64_t>(blockIdx.y) * rank + p) * columns + to_column;
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        store_pack(to + j,
                   Pack<float>{sums[tile][j][i], sums[tile][j + 1][i], sums[tile][j + 2][i], sums[tile][j + 3][i]});
      }
    }
  }
}

template <int kTiles>
void launch(const Context& context, const FactorKernel& k, int64_t parts) {
  const dim3 blocks(blocks_for(k.shape.columns, kBlockColumns), static_cast<unsigned>(parts));
  factor_kernel<kTiles><<<blocks, kThreads, 0, stream_of(context)>>>(k);
  check_launch("computing a thin gradient");
}

}  // namespace

void low_rank_factor_kernels(const Context& context, const LowRankFactorArgs& args) {
  const int64_t rows = args.wide.shape[0], columns = args.wide.shape[1], rank = args.thin.shape[1];
  HONE_ASSERT(args.thin.dtype == DType::kF32);
  const int64_t parts = parts_of(rows, (columns + kBlockColumns - 1) / kBlockColumns, kWarps * 16);
  ArenaScope scratch(context.scratch());
  const Tensor partial = scratch.take({parts, rank, columns}, DType::kF32);
  if (context.dry()) return;
  const FactorKernel kernel{.shape = low_rank_shape(args.wide, rank),
                            .mask = RowMask(args.dropout),
                            .thin = elements<float>(args.thin),
                            .wide = elements<__nv_bfloat16>(args.wide),
                            .partial = elements<float>(partial)};
  rank <= 16 ? launch<1>(context, kernel, parts) : launch<2>(context, kernel, parts);
  add_parts(context, partial, args.alpha, args.factor, args.factor_transposed);
}

}  // namespace hone::cuda
