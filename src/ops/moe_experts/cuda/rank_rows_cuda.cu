// x Aᵀ and dy B of expert adapters. Bound by reading the wide rows once.
#include <cuda_pipeline.h>

#include "kernels/cuda/grouped_gemm/grouped_tiles_cuda.h"
#include "kernels/cuda/low_rank/low_rank_cuda.h"
#include "kernels/cuda/low_rank/low_rank_kernels_cuda.h"
#include "ops/moe_experts/cuda/rank_masks_cuda.h"
#include "ops/moe_experts/cuda/rank_products_cuda.h"

namespace hone::cuda {

namespace {

using bf16 = __nv_bfloat16;

// A CTA processes 128 rows of one expert and all columns of c; each of its 8 warps has 16 rows. A warp reads its rows
// directly into registers, 16 bytes per thread (low_rank_kernels_cuda.h explains the numbering of k); the factor, which
// all warps read, is staged in shared memory with double buffering.
constexpr int kThreads = 256;
constexpr int kRows = 128;
constexpr int kStep = 128;           // elements of k per step
constexpr int kChunks = kStep / 32;  // chunks of 32 elements: 8 per thread of a quad
constexpr int kStride = kStep + 32;  // padding: 16-byte reads of 8 threads use different banks
constexpr int kUnits = kStep / 8;    // 16-byte units of a step

struct RankRows {
  const int64_t* offsets;
  int groups;
  const bf16* a;
  const int32_t* a_rows;
  const bf16* factor;
  bf16* c;
  int k, columns;
  RankMasks masks;
};

template <int kTiles>
struct FactorMemory {
  alignas(16) bf16 values[2][8 * kTiles][kStride];
};

template <int kTiles>
__device__ void stage_factor(const RankRows& p, const bf16* factor, int k0, bf16 (&to)[8 * kTiles][kStride]) {
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < 8 * kTiles * kUnits; i += kThreads) {
    const int row = i / kUnits, k = k0 + i % kUnits * 8;
    const bool inside = row < p.columns && k < p.k;
    __pipeline_memcpy_async(&to[row][i % kUnits * 8], factor + (inside ? int64_t{row} * p.k + k : 0), 16,
                            inside ? 0 : 16);
  }
  __pipeline_commit();
}

/// Rows g and g + 8 of a warp's 16: 8 elements of each chunk.
struct RowFragments {
  uint4 values[2][kChunks];

  __device__ void load(const bf16* const (&rows)[2], int k0, int k) {
    const int first = k0 + static_cast<int>(threadIdx.x) % 4 * 8;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < 2; ++i) values[i][chunk] = load_eight(rows[i] + first + 32 * chunk, first + 32 * chunk < k);
    }
  }
};

/// Adds the products of 32 elements of k for columns [8 first, 8 last).
template <int kTiles>
__device__ void multiply_chunk(const uint4& upper, const uint4& lower, int chunk,
                               const bf16 (&factor)[8 * kTiles][kStride], int first, int last,
                               float (&sums)[kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, quad = lane % 4;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    if (tile < first || tile >= last) continue;
    const uint4 b = *reinterpret_cast<const uint4*>(&factor[tile * 8 + group][chunk * 32 + quad * 8]);
    mma_m16n8k16(sums[tile], upper.x, lower.x, upper.y, lower.y, b.x, b.y);
    mma_m16n8k16(sums[tile], upper.z, lower.z, upper.w, lower.w, b.z, b.w);
  }
}

template <int kTiles, bool kMasked>
__global__ void __launch_bounds__(kThreads, 2) rank_rows_kernel(const __grid_constant__ RankRows p) {
  __shared__ FactorMemory<kTiles> memory;
  const GroupTile tile = find_group_tile<kRows>(p.offsets, p.groups, blockIdx.x);
  if (tile.group < 0) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  const int64_t first_row = tile.begin + threadIdx.x / 32 * 16 + lane / 4;
  int64_t own[2];
  const bf16* rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    own[i] = first_row + 8 * i < tile.end ? first_row + 8 * i : tile.end - 1;
    rows[i] = p.a + (p.a_rows != nullptr ? int64_t{p.a_rows[own[i]]} : own[i]) * p.k;
  }
  const bf16* factor = p.factor + int64_t{tile.group} * p.columns * p.k;
  float sums[kTiles][4] = {};
  RowFragments next;
  stage_factor<kTiles>(p, factor, 0, memory.values[0]);
  next.load(rows, 0, p.k);
  for (int k0 = 0, buffer = 0; k0 < p.k; k0 += kStep, buffer ^= 1) {
    const RowFragments current = next;
    __pipeline_wait_prior(0);
    __syncthreads();
    if (k0 + kStep < p.k) {
      stage_factor<kTiles>(p, factor, k0 + kStep, memory.values[buffer ^ 1]);
      next.load(rows, k0 + kStep, p.k);
    }
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint4 &upper = current.values[0][chunk], &lower = current.values[1][chunk];
      if constexpr (kMasked) {
        for (int slice = 0; slice < p.masks.count; ++slice) {
          const int at = k0 / 8 + 4 * chunk + quad;
          const uint4 upper_bits = element_bits(p.masks.row(slice, own[0])[at]);
          const uint4 lower_bits = element_bits(p.masks.row(slice, own[1])[at]);
          multiply_chunk<kTiles>(masked(upper, upper_bits), masked(lower, lower_bits), chunk, memory.values[buffer],
                                 p.masks.first[slice], p.masks.last[slice], sums);
        }
      } else {
        multiply_chunk<kTiles>(upper, lower, chunk, memory.values[buffer], 0, kTiles, sums);
      }
    }
  }
#pragma unroll
  for (int column_tile = 0; column_tile < kTiles; ++column_tile) {
    const int column = column_tile * 8 + 2 * quad;
    if (column >= p.columns) break;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (first_row + 8 * i >= tile.end) break;
      *reinterpret_cast<uint32_t*>(p.c + own[i] * p.columns + column) =
          pack_bf16(sums[column_tile][2 * i], sums[column_tile][2 * i + 1]);
    }
  }
}

template <int kTiles>
void launch(const Context& context, const RankRows& p, int64_t rows) {
  auto* kernel = p.masks.count > 0 ? rank_rows_kernel<kTiles, true> : rank_rows_kernel<kTiles, false>;
  kernel<<<blocks_for(max_group_tiles(rows, p.groups, kRows), 1), kThreads, 0, stream_of(context)>>>(p);
  check_launch("projecting rows on the ranks of expert adapters");
}

}  // namespace

bool rank_products_fit(const Context& context, DType dtype, int64_t columns, size_t slices,
                       std::initializer_list<int64_t> widths) {
  for (int64_t width : widths) {
    if (width % 8 != 0 || width > INT32_MAX / 2) return false;
  }
  return dtype == DType::kBF16 && columns <= kMaxRankColumns && slices <= kMaxRankSlices &&
         kernel_tiers(context).low_rank == Tier::kSm80;
}

void rank_rows(const Context& context, const RankRowsArgs& args) {
  if (context.dry() || args.groups.rows == 0) return;
  const RankRows p{.offsets = args.groups.offsets.as<int64_t>(),
                   .groups = static_cast<int>(args.groups.groups()),
                   .a = elements<bf16>(args.a),
                   .a_rows = elements<int32_t>(args.a_rows),
                   .factor = elements<bf16>(args.factor),
                   .c = elements<bf16>(args.c),
                   .k = static_cast<int>(args.a.shape[1]),
                   .columns = static_cast<int>(args.c.shape[1]),
                   .masks = rank_masks(args.slices)};
  const int64_t tiles = args.c.shape[1] / 8;
  if (tiles == 1) return launch<1>(context, p, args.groups.rows);
  if (tiles == 2) return launch<2>(context, p, args.groups.rows);
  if (tiles <= 4) return launch<4>(context, p, args.groups.rows);
  launch<8>(context, p, args.groups.rows);
}

}  // namespace hone::cuda
