// Products of the rows of experts with their weights on Hopper: two epilogues for the main loop of
// hopper_pipeline_cuda.h, whose head comment has its budget. StoreSums also writes the gradient of the input (MN-major
// weights).
//
// Tuned for 128 experts of 2048 x 768 and 16,384 tokens, top-8. One H200, 2026-11-22, `hone bench ops --op moe`,
// ceiling 788 TFLOP/s (a square product): gate and up with gathering and activation 540, down 446
// (bench/results/h200-moe-layer.json). The products alone, 2026-11-23: 638, 653, and 671 for the gradient of the input
// (bench/results/sm80-kernels-2026-11-23.txt). In 8-bit floats, 2026-11-30, a step of 8 layers of Mixtral with LoRA on
// attention takes 152 ms in place of 218 (bench/results/h200-fp8-2026-11-30.txt). Tried: scaling the accumulators where
// they are, before the epilogue; ptxas then serialises wgmma (C7515).
#include "kernels/cuda/grouped_gemm/grouped_gemm_hopper.h"
#include "kernels/cuda/grouped_gemm/grouped_tensor_cores_cuda.h"
#include "kernels/cuda/grouped_gemm/hopper_product_cuda.h"
#include "kernels/cuda/grouped_gemm/hopper_strip_cuda.h"

namespace hone::cuda {

using namespace sm90;

namespace {

/// Stores the accumulators as c.
class StoreSums {
 public:
  using Args = StoreArgs;
  static constexpr int kColumns = kTileN;
  static constexpr bool kNarrowTiles = true;

  __device__ StoreSums(const Args& args, const ProductFactors& factors) : args_(args), n_(factors.n) {}

  template <class Scales>
  __device__ void write(const WarpgroupSums<kColumns>& sums, const PairTile& tile, uint32_t strip,
                        const Scales& scales) const {
    const int warp_row = static_cast<int>(threadIdx.x) / 32 % 4 * kStripRows;
    const int first_column = tile.n_tile * kTileN;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int row = block * kBlockM + warp_row;
      if (row >= tile.m_count) break;
      const auto of_rows = scales.of_rows(tile, block, 0);
#pragma unroll
      for (int part = 0; part < kTileN / kStripColumns; ++part) {
        const int column = first_column + part * kStripColumns;
        if (column >= n_) break;
        const uint32_t half = strip + static_cast<uint32_t>(part % 2) * kStripPartBytes;
        put_fragment(half, round_sums(sums[block], part, of_rows));
        __syncwarp();  // two parts alternate, so one barrier per part is enough
        strip_to_memory(half, {args_.c + static_cast<int64_t>(tile.m_begin + row) * n_ + column, n_, tile.m_count - row,
                               n_ - column});
      }
      __syncwarp();
    }
  }

 private:
  const Args& args_;
  int n_;
};

/// Stores the accumulators as c, and activation = silu(gate) · up; a tile has 96 columns of gate and the matching 96 of
/// up.
class StoreActivated {
 public:
  using Args = StoreArgs;
  static constexpr int kColumns = kTileN;
  static constexpr bool kNarrowTiles = false;

  __device__ StoreActivated(const Args& args, const ProductFactors& factors) : args_(args), half_(factors.n / 2) {}

  template <class Scales>
  __device__ void write(const WarpgroupSums<kColumns>& sums, const PairTile& tile, uint32_t strip,
                        const Scales& scales) const {
    const int warp_row = static_cast<int>(threadIdx.x) / 32 % 4 * kStripRows;
    const int first_column = tile.n_tile * kHalfN;
    constexpr int kParts = kHalfN / kStripColumns;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int row = block * kBlockM + warp_row;
      if (row >= tile.m_count) break;
      const int64_t global_row = tile.m_begin + row;
      const auto of_gate = scales.of_rows(tile, block, 0), of_up = scales.of_rows(tile, block, 1);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int column = first_column + part * kStripColumns;
        if (column >= half_) break;
        const StripFragment gate = round_sums(sums[block], part, of_gate);
        const StripFragment up = round_sums(sums[block], part + kParts, of_up);
        StripTarget target{args_.c + global_row * 2 * half_ + column, 2 * half_, tile.m_count - row, half_ - column};
        put_fragment(strip, gate);
        put_fragment(strip + kStripPartBytes, up);
        __syncwarp();
        strip_to_memory(strip, target);
        target.first += half_;
        strip_to_memory(strip + kStripPartBytes, target);
        __syncwarp();
        put_fragment(strip, activate(gate, up));
        __syncwarp();
        strip_to_memory(strip, {args_.activation + global_row * half_ + column, half_, target.rows, target.columns});
        __syncwarp();
      }
    }
  }

 private:
  __device__ static StripFragment activate(const StripFragment& gate, const StripFragment& up) {
    StripFragment result;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      result.pairs[i / 4][i % 4] = activate_pair(gate.pairs[i / 4][i % 4], up.pairs[i / 4][i % 4]);
    }
    return result;
  }

  const Args& args_;
  int half_;
};

}  // namespace

bool hopper_can_run(const Context& context, const GroupedGemmArgs& args) {
  return kernel_tiers(context).grouped_gemm == Tier::kSm90 && args.groups.groups() <= kMaxGroups && takes_rows(args);
}

bool takes_fp8_groups(const Context& context, int64_t rows, int64_t columns, int64_t groups) {
  return kernel_tiers(context).grouped_gemm == Tier::kSm90 && groups <= kMaxGroups && rows % 128 == 0 &&
         columns % 128 == 0;
}

namespace {

void grouped_fp8(const Context& context, const GroupedGemmArgs& args) {
  HONE_ASSERT(!args.extra_a.defined() && args.fp8.columns == args.a.shape[1]);
  HONE_ASSERT(args.fp8.matrices == (args.activation.defined() ? 2 : 1));
  if (context.dry() || args.groups.rows == 0) return;
  const bool activates = args.activation.defined();
  const ProductFactors factors =
      fp8_product_factors(args.groups, args.a, args.a_scales, args.a_rows, args.fp8, activates);
  const auto launch = [&](auto epilogue) {
    launch_product<false, typename decltype(epilogue)::type, true>(context, "multiplying rows of groups in FP8",
                                                                   factors, args.groups.rows, store_args(args));
  };
  activates ? launch(std::type_identity<StoreActivated>()) : launch(std::type_identity<StoreSums>());
}

}  // namespace

void grouped_gemm_hopper(const Context& context, const GroupedGemmArgs& args) {
  if (args.fp8.defined()) return grouped_fp8(context, args);
  HONE_ASSERT(hopper_can_run(context, args));
  if (context.dry() || args.groups.rows == 0) return;
  const ProductFactors factors = product_factors(args.groups, args.a, args.a_rows, args.w, args.w_transposed,
                                                 args.extra_a, args.extra_w, args.activation.defined());
  with_epilogue<StoreSums, StoreActivated>(args, [&](auto w_mn_major, auto epilogue) {
    launch_product<w_mn_major(), typename decltype(epilogue)::type>(context, "multiplying rows of groups", factors,
                                                                    args.groups.rows, store_args(args));
  });
}

}  // namespace hone::cuda
