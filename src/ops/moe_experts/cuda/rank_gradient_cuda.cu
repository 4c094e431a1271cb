// dA and dB of expert adapters: a sum over an expert's rows with 3 stages of 64 rows in shared memory. Bound by reading
// the wide rows once.
#include <cuda_pipeline.h>

#include "kernels/cuda/grouped_gemm/grouped_tiles_cuda.h"
#include "kernels/cuda/low_rank/low_rank_cuda.h"
#include "kernels/cuda/low_rank/low_rank_kernels_cuda.h"
#include "ops/moe_experts/cuda/rank_masks_cuda.h"
#include "ops/moe_experts/cuda/rank_products_cuda.h"

namespace hone::cuda {

namespace {

using bf16 = __nv_bfloat16;

// A CTA processes 128 columns of b for one expert, with the expert's rows, 64 at a time, in a ring of 3 stages; each of
// its 8 warps has 16 of the columns and all ranks. Both operands are MN-major (the product sums over rows), so
// fragments are loaded from shared memory by ldmatrix.trans.
constexpr int kThreads = 256;
constexpr int kColumns = 128;
constexpr int kRows = 64;
constexpr int kStages = 3;
constexpr int kUnits = kColumns / 8;           // 16-byte units of a row of b
constexpr int kRowsApart = kThreads / kUnits;  // rows of b that the CTA copies at a time
constexpr int kRowsEach = kRows / kRowsApart;

struct RankDest {
  float* dst;
  float scale;
  bool adds;
  int begin, rank;
  int first, count;
};

struct RankGradient {
  const int64_t* offsets;
  const bf16* thin;
  const bf16* b;
  const int32_t* b_rows;
  int columns, n;  // J, N
  bool ranks_last;
  RankDest dests[kMaxRankSlices];
  int count;
  RankMasks masks;
};

/// `kTiles` tiles of 16 ranks. The 16-byte units of a row of b are swizzled, and a row of `thin` has an odd number of
/// units, so that the 8 rows of one ldmatrix are in different banks.
template <int kTiles, bool kMasked>
struct RankStage {
  static constexpr int kThinUnits = 2 * kTiles + 1;
  alignas(16) bf16 b[kRows][kColumns];
  alignas(16) bf16 thin[kRows][kThinUnits * 8];
  alignas(16) uint8_t masks[kMasked ? kMaxRankSlices : 1][kRows][kColumns / 8];
};

__device__ inline bf16* unit_of(bf16 (&row)[kColumns], int r, int unit) { return row + (unit ^ (r % 8)) * 8; }

template <int kTiles, bool kMasked>
class RankGradientBlock {
 public:
  using Stage = RankStage<kTiles, kMasked>;

  __device__ RankGradientBlock(const RankGradient& p, Stage* stages)
      : p_(p),
        stages_(stages),
        begin_(p.offsets[blockIdx.y]),
        end_(p.offsets[blockIdx.y + 1]),
        first_column_(static_cast<int>(blockIdx.x) * kColumns) {}

  __device__ void run() {
    const int64_t steps = (end_ - begin_ + kRows - 1) / kRows;
    find_rows(0);
    for (int stage = 0; stage < kStages - 1; ++stage) {
      if (stage < steps) copy(stage);
      __pipeline_commit();
    }
    for (int64_t step = 0; step < steps; ++step) {
      __pipeline_wait_prior(kStages - 2);
      __syncthreads();
      if (step + kStages - 1 < steps) copy(step + kStages - 1);
      __pipeline_commit();
      multiply(stages_[step % kStages]);
    }
    for (int i = 0; i < p_.count; ++i) write(p_.dests[i]);
  }

 private:
  __device__ int unit() const { return static_cast<int>(threadIdx.x) % kUnits; }
  __device__ int row(int i) const { return static_cast<int>(threadIdx.x) / kUnits + i * kRowsApart; }

  /// Finds the rows of b that the thread copies at `step`; called one step ahead, so that copies do not wait for them.
  __device__ void find_rows(int64_t step) {
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      const int64_t r = begin_ + step * kRows + row(i);
      rows_[i] = r >= end_ ? -1 : p_.b_rows != nullptr ? p_.b_rows[r] : r;
    }
  }

  /// Queues the rows of `step`, zeros past the end. Called in order of steps.
  __device__ void copy(int64_t step) {
    Stage& stage = stages_[step % kStages];
    const int64_t first_row = begin_ + step * kRows;
    const int column = first_column_ + unit() * 8;
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      const bool inside = rows_[i] >= 0 && column < p_.n;
      __pipeline_memcpy_async(unit_of(stage.b[row(i)], row(i), unit()), p_.b + (inside ? rows_[i] * p_.n + column : 0),
                              16, inside ? 0 : 16);
    }
    constexpr int kThinUnits = 2 * kTiles;
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kThinUnits; i += kThreads) {
      const int r = i / kThinUnits, j = i % kThinUnits * 8;
      const bool inside = first_row + r < end_ && j < p_.columns;
      __pipeline_memcpy_async(&stage.thin[r][j], p_.thin + (inside ? (first_row + r) * p_.columns + j : 0), 16,
                              inside ? 0 : 16);
    }
    if constexpr (kMasked) {
      for (int i = static_cast<int>(threadIdx.x); i < kRows * p_.masks.count; i += kThreads) {
        const int r = i % kRows, slice = i / kRows;
        const bool inside = first_row + r < end_;
        const uint8_t* from = p_.masks.row(slice, inside ? first_row + r : 0) + first_column_ / 8;
        __pipeline_memcpy_async(stage.masks[slice][r], from, 16, inside ? 0 : 16);
      }
    }
    find_rows(step + 1);
  }

  __device__ void multiply(Stage& stage) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int matrix = lane / 8, in_matrix = lane % 8;
#pragma unroll
    for (int k = 0; k < kRows; k += 16) {
      uint32_t b[4];  // rows k … and k + 8 … of columns 0 … 7, then 8 … 15 of the warp
      const int b_row = k + matrix % 2 * 8 + in_matrix;
      ldmatrix_x4_trans(b, shared_address(unit_of(stage.b[b_row], b_row, warp * 2 + matrix / 2)));
      uint32_t thin[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        ldmatrix_x4_trans(thin[tile],
                          shared_address(&stage.thin[k + matrix / 2 * 8 + in_matrix][tile * 16 + matrix % 2 * 8]));
      }
      if constexpr (kMasked) {
        for (int slice = 0; slice < p_.masks.count; ++slice) {
          uint32_t kept[4];
          mask(stage, slice, k, b, kept);
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            // Ranks 0 … 7 and 8 … 15 of a tile may belong to different adapters.
            const bool low = has_unit(slice, 2 * tile), high = has_unit(slice, 2 * tile + 1);
            const uint32_t a[4] = {low ? thin[tile][0] : 0, high ? thin[tile][1] : 0, low ? thin[tile][2] : 0,
                                   high ? thin[tile][3] : 0};
            if (low || high) multiply_tile(tile, a, kept);
          }
        }
      } else {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) multiply_tile(tile, thin[tile], b);
      }
    }
  }

  __device__ bool has_unit(int slice, int unit) const {
    return unit >= p_.masks.first[slice] && unit < p_.masks.last[slice];
  }

  __device__ void multiply_tile(int tile, const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    mma_m16n8k16(sums_[tile][0], a[0], a[1], a[2], a[3], b[0], b[1]);
    mma_m16n8k16(sums_[tile][1], a[0], a[1], a[2], a[3], b[2], b[3]);
  }

  /// kept = b where the mask is one. A register of b has rows 2 quad and 2 quad + 1 of column `group`.
  __device__ void mask(const Stage& stage, int slice, int k, const uint32_t (&b)[4], uint32_t (&kept)[4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, quad = lane % 4;
    const int byte = static_cast<int>(threadIdx.x) / 32 * 2;  // byte of columns 0 … 7 of the warp
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t bits[2];  // bits of both bytes
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        bits[i] = *reinterpret_cast<const uint16_t*>(&stage.masks[slice][k + half * 8 + 2 * quad + i][byte]);
      }
#pragma unroll
      for (int columns = 0; columns < 2; ++columns) {
        const int bit = group + 8 * columns;
        const uint32_t low = 0u - (bits[0] >> bit & 1u), high = 0u - (bits[1] >> bit & 1u);
        kept[2 * columns + half] = b[2 * columns + half] & ((low & 0xFFFFu) | (high & 0xFFFF0000u));
      }
    }
  }

  __device__ void write(const RankDest& dest) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, quad = lane % 4;
    float* dst = dest.dst + int64_t{blockIdx.y} * dest.rank * dest.count;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int columns = 0; columns < 2; ++columns) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int j = tile * 16 + i / 2 * 8 + group - dest.begin;
          const int column = static_cast<int>(threadIdx.x) / 32 * 16 + columns * 8 + 2 * quad + i % 2;
          const int n = first_column_ + column - dest.first;
          if (j < 0 || j >= dest.rank || n < 0 || n >= dest.count || first_column_ + column >= p_.n) continue;
          float& to = dst[p_.ranks_last ? int64_t{n} * dest.rank + j : int64_t{j} * dest.count + n];
          const float value = dest.scale * sums_[tile][columns][i];
          to = dest.adds ? value + to : value;
        }
      }
    }
  }

  const RankGradient& p_;
  Stage* stages_;
  int64_t begin_, end_;
  int first_column_;
  int64_t rows_[kRowsEach];
  float sums_[kTiles][2][4] = {};
};

template <int kTiles, bool kMasked>
__global__ void __launch_bounds__(kThreads) rank_gradient_kernel(const __grid_constant__ RankGradient p) {
  extern __shared__ __align__(16) char memory[];
  RankGradientBlock<kTiles, kMasked>(p, reinterpret_cast<RankStage<kTiles, kMasked>*>(memory)).run();
}

template <int kTiles, bool kMasked>
void launch(const Context& context, const RankGradient& p, int64_t groups) {
  auto* kernel = rank_gradient_kernel<kTiles, kMasked>;
  constexpr int kShared = kStages * static_cast<int>(sizeof(RankStage<kTiles, kMasked>));
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
        "preparing the gradients of expert adapters");
  const dim3 grid(blocks_for(p.n, kColumns), static_cast<unsigned>(groups));
  kernel<<<grid, kThreads, kShared, stream_of(context)>>>(p);
  check_launch("forming the gradients of expert adapters");
}

template <int kTiles>
void launch(const Context& context, const RankGradient& p, int64_t groups) {
  if (p.masks.count > 0) return launch<kTiles, true>(context, p, groups);
  launch<kTiles, false>(context, p, groups);
}

}  // namespace

void rank_gradient(const Context& context, const RankGradientArgs& args) {
  if (context.dry() || args.groups.groups() == 0) return;
  RankGradient p{.offsets = args.groups.offsets.as<int64_t>(),
                 .thin = elements<bf16>(args.thin),
                 .b = elements<bf16>(args.b),
                 .b_rows = elements<int32_t>(args.b_rows),
                 .columns = static_cast<int>(args.thin.shape[1]),
                 .n = static_cast<int>(args.b.shape[1]),
                 .ranks_last = args.ranks_last,
                 .masks = rank_masks(args.slices)};
  for (size_t i = 0; i < args.dests.size(); ++i) {
    const RankGradientDest& to = args.dests[i];
    if (!to.dest.wanted()) continue;
    p.dests[p.count++] = {to.dest.dst.as<float>(),
                          to.scale,
                          to.dest.beta != 0.0f,
                          static_cast<int>(args.slices[i].begin),
                          static_cast<int>(args.slices[i].rank),
                          static_cast<int>(to.first),
                          static_cast<int>(to.count)};
  }
  const int64_t tiles = (args.thin.shape[1] + 15) / 16;
  if (tiles == 1) return launch<1>(context, p, args.groups.groups());
  if (tiles == 2) return launch<2>(context, p, args.groups.groups());
  launch<4>(context, p, args.groups.groups());
}

}  // namespace hone::cuda
