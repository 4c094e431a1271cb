// Products of the rows of experts with their weights on tier sm80: epilogues for the tile of
// kernels/cuda/sm80/product_cuda.h, whose head comment has its budget and ceiling. StoreSums also writes the gradient
// of the input (MN-major weights).
//
// Tuned for 128 experts of 2048 x 768 and 16,384 tokens, top-8. One H200 limited to this tier, 2026-11-23, TFLOP/s:
// gate and up with the activation 270, down 286, gradient of the input 307 (sm90: 638, 653, 671). Registers (ptxas
// 13.0): 254 or 255, at most 8 bytes spilled on 8.0. Raw: bench/results/sm80-kernels-2026-11-23.txt,
// sm80-registers-2026-11-23.txt.
#include "kernels/cuda/grouped_gemm/grouped_gemm_sm80.h"
#include "kernels/cuda/grouped_gemm/grouped_tensor_cores_cuda.h"
#include "kernels/cuda/grouped_gemm/sm80_epilogue_cuda.h"
#include "kernels/cuda/grouped_gemm/sm80_product_cuda.h"

namespace hone::cuda {

using namespace sm80;

namespace {

/// Stores the accumulators as c.
class StoreSums {
 public:
  using Args = StoreArgs;
  static constexpr bool kHalves = false;

  __device__ StoreSums(const Args& args, const ProductFactors& f) : args_(args), n_(f.n) {}

  __device__ void write(const WarpSums& sums, const GroupTile& tile) const {
    const int column = tile.n_tile * kTileColumns + warp_across() * kWarpColumns;
#pragma unroll
    for (int i = 0; i < kWarpRows / 16; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row() + i * 16 + accumulator_row() + half * 8;
        __nv_bfloat16* to = args_.c + int64_t{tile.row + row} * n_ + column;
#pragma unroll
        for (int part = 0; part < kWarpColumns / kQuadColumns; ++part) {
          uint32_t packed[4];
          round_row(packed, sums[i], part * 4, half);
          const bool exists = row < tile.rows && column + part * kQuadColumns + quad_column() < n_;
          store_quad(to + part * kQuadColumns, packed, exists);
        }
      }
    }
  }

 private:
  const Args& args_;
  int n_;
};

/// Stores the accumulators as c, and activation = silu(gate) · up; a warp has 32 columns of gate and the matching 32 of
/// up.
class StoreActivated {
 public:
  using Args = StoreArgs;
  static constexpr bool kHalves = true;

  __device__ StoreActivated(const Args& args, const ProductFactors& f) : args_(args), half_n_(f.n / 2) {}

  __device__ void write(const WarpSums& sums, const GroupTile& tile) const {
    const int column = tile.n_tile * (kTileColumns / 2) + warp_across() * kQuadColumns;
#pragma unroll
    for (int i = 0; i < kWarpRows / 16; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row() + i * 16 + accumulator_row() + half * 8;
        const int64_t at = tile.row + row;
        uint32_t gate[4], up[4], activation[4];
        round_row(gate, sums[i], 0, half);
        round_row(up, sums[i], 4, half);
#pragma unroll
        for (int j = 0; j < 4; ++j) activation[j] = activate_pair(gate[j], up[j]);
        const bool exists = row < tile.rows && column + quad_column() < half_n_;
        store_quad(args_.c + at * 2 * half_n_ + column, gate, exists);
        store_quad(args_.c + (at * 2 + 1) * half_n_ + column, up, exists);
        store_quad(args_.activation + at * half_n_ + column, activation, exists);
      }
    }
  }

 private:
  const Args& args_;
  int half_n_;
};

}  // namespace

bool sm80_can_run(const Context& context, const GroupedGemmArgs& args) {
  return kernel_tiers(context).grouped_gemm == Tier::kSm80 && takes_rows(args);
}

void grouped_gemm_sm80(const Context& context, const GroupedGemmArgs& args) {
  HONE_ASSERT(sm80_can_run(context, args));
  if (context.dry() || args.groups.rows == 0) return;
  const ProductFactors factors = product_factors(args.groups, args.a, args.a_rows, args.w, args.w_transposed,
                                                 args.extra_a, args.extra_w, args.activation.defined());
  with_epilogue<StoreSums, StoreActivated>(args, [&](auto w_mn_major, auto epilogue) {
    launch_product<w_mn_major(), typename decltype(epilogue)::type>(context, "multiplying rows of groups", factors,
                                                                    args.groups.rows, store_args(args));
  });
}

}  // namespace hone::cuda
