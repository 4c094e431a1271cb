// Wide to thin, x Aᵀ: bound by reading the wide matrix once, 16 bytes per thread directly into MMA fragments.
#include "kernels/cuda/low_rank/low_rank_cuda.h"
#include "kernels/cuda/low_rank/low_rank_kernels_cuda.h"

namespace hone::cuda {

namespace {

template <class From>
__global__ void pad_factor_kernel(const From* from, int64_t row_stride, int64_t column_stride, int rows, int columns,
                                  __nv_bfloat16* to, int64_t to_elements, int to_columns) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= to_elements) return;
  const int64_t row = index / to_columns, column = index - row * to_columns;
  const bool inside = row < rows && column < columns;
  to[index] = inside ? from_float<__nv_bfloat16>(to_float(from[row * row_stride + column * column_stride]))
                     : __float2bfloat16_rn(0.0f);
}

/// A CTA has 64 rows; a warp processes 32 of them and every fourth group of 32 columns, so that a row is read 256 bytes
/// at a time. Both halves of the rows read the same part of the factor together, so most of its reads hit L1.
constexpr int kThreads = 256;
constexpr int kRowTiles = 2;   ///< tiles of 16 rows per warp
constexpr int kRowGroups = 2;  ///< groups of warps
constexpr int kSplits = 4;     ///< splits of the columns
constexpr int kBlockRows = kRowGroups * kRowTiles * 16;
static_assert(kRowGroups * kSplits * 32 == kThreads);

struct NarrowKernel {
  LowRankShape shape;
  RowMask mask;
  const __nv_bfloat16* wide;
  const __nv_bfloat16* factor;  // [8 kTiles, N]
  float* thin;
  float alpha, beta;
};

template <int kTiles>
__global__ void __launch_bounds__(kThreads, 2) narrow_kernel(NarrowKernel p) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
  const int row_group = warp % kRowGroups, split = warp / kRowGroups;
  const int columns = p.shape.columns;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kBlockRows + row_group * kRowTiles * 16 + group;

  const __nv_bfloat16* rows[2 * kRowTiles];
  MaskRow mask_rows[2 * kRowTiles];
  const uint64_t key = lora_dropout_key(p.mask.scalars->seed, p.mask.stream_id);
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const int64_t row = min(first_row + 8 * i, p.shape.rows - 1);
    rows[i] = p.wide + row * columns;
    mask_rows[i] = mask_row(p.mask, row);
  }

  float sums[kRowTiles][kTiles][4] = {};
  for (int column = split * 32 + quad * 8; column - quad * 8 < columns; column += kSplits * 32) {
    const bool inside = column < columns;
    uint4 values[2 * kRowTiles];
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) values[i] = load_eight(rows[i] + column, inside);
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      values[i] = masked(values[i], keep_bits(p.mask, key, mask_rows[i], column));
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4 b = load_eight(p.factor + static_cast<int64_t>(tile * 8 + group) * columns + column, inside);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        const uint4 &upper = values[2 * m], &lower = values[2 * m + 1];
        mma_m16n8k16(sums[m][tile], upper.x, lower.x, upper.y, lower.y, b.x, b.y);
        mma_m16n8k16(sums[m][tile], upper.z, lower.z, upper.w, lower.w, b.z, b.w);
      }
    }
  }

  // The splits are added in order, through the same memory.
  __shared__ float4 shared[kRowGroups][kRowTiles][kTiles][32];
  for (int from = 1; from < kSplits; ++from) {
    __syncthreads();
    if (split == from) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const float(&s)[4] = sums[m][tile];
          shared[row_group][m][tile][lane] = make_float4(s[0], s[1], s[2], s[3]);
        }
      }
    }
    __syncthreads();
    if (split == 0) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const float4 other = shared[row_group][m][tile][lane];
          float(&s)[4] = sums[m][tile];
          s[0] += other.x, s[1] += other.y, s[2] += other.z, s[3] += other.w;
        }
      }
    }
  }
  if (split != 0) return;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t row = first_row + 16 * m + 8 * (i / 2);
        const int rank = tile * 8 + 2 * quad + i % 2;
        if (row >= p.shape.rows || rank >= p.shape.rank) continue;
        float* to = p.thin + row * p.shape.rank + rank;
        *to = p.alpha * sums[m][tile][i] + (p.beta != 0.0f ? *to : 0.0f);
      }
    }
  }
}

template <int kTiles>
void launch(const Context& context, const NarrowKernel& p) {
  narrow_kernel<kTiles><<<blocks_for(p.shape.rows, kBlockRows), kThreads, 0, stream_of(context)>>>(p);
  check_launch("multiplying by a thin factor");
}

}  // namespace

void pad_factor(const Context& context, const Tensor& from, bool transposed, const Tensor& to) {
  if (context.dry()) return;
  const int64_t rows = from.shape[transposed ? 1 : 0], columns = from.shape[transposed ? 0 : 1];
  cuda::dispatch_float(from.dtype, [&](auto element) {
    using From = decltype(element);
    constexpr int kThreadsOfCopy = 256;
    pad_factor_kernel<<<blocks_for(to.numel(), kThreadsOfCopy), kThreadsOfCopy, 0, stream_of(context)>>>(
        elements<From>(from), transposed ? 1 : columns, transposed ? rows : 1, static_cast<int>(rows),
        static_cast<int>(columns), elements<__nv_bfloat16>(to), to.numel(), static_cast<int>(to.shape[1]));
    check_launch("converting a thin factor");
  });
}

void low_rank_narrow_kernels(const Context& context, const LowRankNarrowArgs& args) {
  const int64_t rank = args.thin.dst.shape[1], columns = args.wide.shape[1];
  const int64_t tiles = rank <= 8 ? 1 : rank <= 16 ? 2 : rank <= 32 ? 4 : 8;
  ArenaScope scratch(context.scratch());
  const Tensor factor = scratch.take({8 * tiles, columns}, DType::kBF16);
  if (context.dry()) return;
  pad_factor(context, args.factor, args.factor_transposed, factor);
  const NarrowKernel kernel{.shape = low_rank_shape(args.wide, rank),
                            .mask = RowMask(args.dropout),
                            .wide = elements<__nv_bfloat16>(args.wide),
                            .factor = elements<__nv_bfloat16>(factor),
                            .thin = elements<float>(args.thin.dst),
                            .alpha = args.alpha,
                            .beta = args.thin.beta};
  if (tiles == 1) return launch<1>(context, kernel);
  if (tiles == 2) return launch<2>(context, kernel);
  if (tiles == 4) return launch<4>(context, kernel);
  launch<8>(context, kernel);
}

}  // namespace hone::cuda
