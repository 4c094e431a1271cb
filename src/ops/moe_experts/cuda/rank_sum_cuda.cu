// Adds the adapters' part to rows of experts. Bound by reading and writing the wide rows once.
#include "kernels/cuda/grouped_gemm/grouped_tiles_cuda.h"
#include "kernels/cuda/low_rank/low_rank_cuda.h"
#include "kernels/cuda/low_rank/low_rank_kernels_cuda.h"
#include "ops/moe_experts/cuda/rank_masks_cuda.h"
#include "ops/moe_experts/cuda/rank_products_cuda.h"

namespace hone::cuda {

namespace {

using bf16 = __nv_bfloat16;

// A CTA processes 128 rows of one expert × 256 columns, each of its 8 warps 16 of the rows, 32 columns at a time. The
// columns of a warp's four MMAs are numbered so that a thread's accumulators are 8 adjacent columns: the 16 bytes that
// it reads and writes. The factor (64 B to 32 KiB) is read through L1.
constexpr int kThreads = 256;
constexpr int kRows = 128, kColumns = 256;
constexpr int kProducts = 4;

struct RankSum {
  const int64_t* offsets;
  int groups;
  const bf16* thin;
  const bf16* factor;
  bf16* dst;
  int columns, n;  // J, N
  RankMasks masks;
};

template <int kUnits>
struct ThinFragments {
  uint32_t values[kUnits][2];  // rows g and g + 8, ranks 2 quad and 2 quad + 1 of a unit of 8
};

/// `kUnits` units of 8 ranks.
template <int kUnits>
__global__ void __launch_bounds__(kThreads, 2) rank_sum_kernel(const __grid_constant__ RankSum p) {
  const GroupTile tile = find_group_tile<kRows>(p.offsets, p.groups, blockIdx.x);
  if (tile.group < 0) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, quad = lane % 4;
  const int64_t first_row = tile.begin + threadIdx.x / 32 * 16 + group;
  int64_t own[2];
  ThinFragments<kUnits> thin;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    own[i] = first_row + 8 * i < tile.end ? first_row + 8 * i : tile.end - 1;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int j = unit * 8 + 2 * quad;
      thin.values[unit][i] =
          j < p.columns ? __ldg(reinterpret_cast<const uint32_t*>(p.thin + own[i] * p.columns + j)) : 0u;
    }
  }
  const bf16* factor = p.factor + int64_t{tile.group} * p.n * p.columns;
  const int begin = static_cast<int>(blockIdx.y) * kColumns;
  const int end = p.n - begin < kColumns ? p.n : begin + kColumns;
  for (int base = begin; base < end; base += 8 * kProducts) {
    const int column = base + 8 * quad;
    const bool inside = column < p.n;
    uint4 before[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Not through the read-only path: other threads of this kernel write nearby.
      before[i] = inside ? *reinterpret_cast<const uint4*>(p.dst + own[i] * p.n + column) : make_uint4(0, 0, 0, 0);
    }
    float total[kProducts][4] = {};
    for (int slice = 0; slice < p.masks.count; ++slice) {
      float sums[kProducts][4] = {};
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        if (unit < p.masks.first[slice] || unit >= p.masks.last[slice]) continue;
#pragma unroll
        for (int product = 0; product < kProducts; ++product) {
          const int n = base + group / 2 * 8 + 2 * product + group % 2;
          const bf16* from = factor + int64_t{n} * p.columns + unit * 8 + 2 * quad;
          mma_m16n8k8(sums[product], thin.values[unit][0], thin.values[unit][1],
                      n < p.n ? __ldg(reinterpret_cast<const uint32_t*>(from)) : 0u);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t bits = inside ? p.masks.row(slice, own[i])[column / 8] : 0u;
#pragma unroll
        for (int product = 0; product < kProducts; ++product) {
          total[product][2 * i] += bits >> (2 * product) & 1u ? sums[product][2 * i] : 0.0f;
          total[product][2 * i + 1] += bits >> (2 * product + 1) & 1u ? sums[product][2 * i + 1] : 0.0f;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!inside || first_row + 8 * i >= tile.end) continue;
      uint32_t values[kProducts] = {before[i].x, before[i].y, before[i].z, before[i].w};
#pragma unroll
      for (int product = 0; product < kProducts; ++product) {
        const float low = __uint_as_float(values[product] << 16), high = __uint_as_float(values[product] & 0xFFFF0000u);
        values[product] = pack_bf16(low + total[product][2 * i], high + total[product][2 * i + 1]);
      }
      *reinterpret_cast<uint4*>(p.dst + own[i] * p.n + column) = make_uint4(values[0], values[1], values[2], values[3]);
    }
  }
}

template <int kUnits>
void launch(const Context& context, const RankSum& p, int64_t rows) {
  const dim3 grid(static_cast<unsigned>(max_group_tiles(rows, p.groups, kRows)), blocks_for(p.n, kColumns));
  rank_sum_kernel<kUnits><<<grid, kThreads, 0, stream_of(context)>>>(p);
  check_launch("adding the input gradient of expert adapters");
}

}  // namespace

void add_rank_sum(const Context& context, const RankSumArgs& args) {
  if (context.dry() || args.dst.numel() == 0) return;
  const RankSum p{.offsets = args.groups.offsets.as<int64_t>(),
                  .groups = static_cast<int>(args.groups.groups()),
                  .thin = elements<bf16>(args.thin),
                  .factor = elements<bf16>(args.factor),
                  .dst = elements<bf16>(args.dst),
                  .columns = static_cast<int>(args.thin.shape[1]),
                  .n = static_cast<int>(args.dst.shape[1]),
                  .masks = rank_masks(args.slices)};
  HONE_ASSERT(p.masks.count > 0, "without masks the sum belongs into the base product");
  const int64_t units = args.thin.shape[1] / 8;
  if (units <= 2) return launch<2>(context, p, args.groups.rows);
  if (units <= 4) return launch<4>(context, p, args.groups.rows);
  launch<8>(context, p, args.groups.rows);
}

}  // namespace hone::cuda
