// The gradient of an expert's second product and of its gated activation on Hopper, in one pass: the product dact, and
// an epilogue that reads h and writes dh, the scaled activation and partial sums of the router's gradient.
//
// Tuned for 128 experts of 2048 x 768 and 16,384 tokens, top-8. One H200, 2026-11-23: 419 TFLOP/s
// (bench/results/sm80-kernels-2026-11-23.txt); a product without this epilogue, the gradient of the input, reaches 671.
// Tried without gain: tiles of 192 columns (the epilogue spills a kilobyte per thread), loading h up to three pieces
// ahead (2 % slower), prefetching h into L2 (equal).
#include "kernels/cuda/grouped_gemm/grouped_gemm_hopper.h"
#include "kernels/cuda/grouped_gemm/grouped_tensor_cores_cuda.h"
#include "kernels/cuda/grouped_gemm/hopper_product_cuda.h"
#include "kernels/cuda/grouped_gemm/hopper_strip_cuda.h"
#include "kernels/cuda/grouped_gemm/partial_dots_cuda.h"

namespace hone::cuda {

using namespace sm90;

namespace {

/// The accumulators are dact; see grouped_dswiglu.
class StoreDswiglu {
 public:
  using Args = DswigluArgs;
  /// 192 columns would leave too few registers, and spills do not stay in L1, since shared memory takes most of it.
  static constexpr int kColumns = 128;
  static constexpr bool kNarrowTiles = true;

  __device__ StoreDswiglu(const Args& args, const ProductFactors& factors) : args_(args), width_(factors.n) {}

  template <class Scales>
  __device__ void write(const WarpgroupSums<kColumns>& sums, const PairTile& tile, uint32_t strip,
                        const Scales& scales) const {
    const int warp_row = static_cast<int>(threadIdx.x) / 32 % 4 * kStripRows;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int row = block * kBlockM + warp_row;
      if (row >= tile.m_count) break;
      write_rows(sums[block], tile, tile.m_begin + row, tile.m_count - row, strip, scales.of_rows(tile, block, 0));
    }
  }

 private:
  /// Writes a warp's 16 rows.
  template <class RowsScales>
  __device__ void write_rows(const float (&sums)[kColumns / 2], const PairTile& tile, int first_row, int rows,
                             uint32_t strip, const RowsScales& of_rows) const {
    const int own_row = lane_index() / 4;  // and own_row + 8
    float scales[2], dots[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = own_row + 8 * i;
      scales[i] = row < rows ? __bfloat162float(args_.weights[args_.assignment[first_row + row]]) : 0.0f;
    }
    const uint32_t other = strip + kStripPartBytes;
#pragma unroll
    for (int part = 0; part < kColumns / kStripColumns; ++part) {
      const int column = tile.n_tile * kColumns + part * kStripColumns;
      if (column >= width_) break;
      const int64_t at = static_cast<int64_t>(first_row) * 2 * width_ + column;
      {
        const StripSource source{args_.h + at, 2 * width_, rows, width_ - column};
        uint4 gate_values[2], up_values[2];
        load_strip(source, gate_values);
        load_strip({source.first + width_, source.row_stride, source.rows, source.columns}, up_values);
        put_strip(strip, gate_values);
        put_strip(other, up_values);
        __syncwarp();
      }
      StripFragment scaled_act;
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // the accumulators leave few registers
        uint32_t gate[4], up[4];
        get_half(strip, half, gate);
        get_half(other, half, up);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 g = unpack_bf16(gate[i]), u = unpack_bf16(up[i]);
          const int sum = 16 * part + 8 * half + 2 * i;
          const DswigluElement first =
              differentiate(of_rows.times(sums[sum], i % 2), g.x, u.x, scales[i % 2], dots[i % 2]);
          const DswigluElement second =
              differentiate(of_rows.times(sums[sum + 1], i % 2), g.y, u.y, scales[i % 2], dots[i % 2]);
          gate[i] = pack_bf16(first.dgate, second.dgate);
          up[i] = pack_bf16(first.dup, second.dup);
          scaled_act.pairs[half][i] = pack_bf16(first.scaled_act, second.scaled_act);
        }
        __syncwarp();
        put_half(strip, half, gate);
        put_half(other, half, up);
      }
      __syncwarp();
      const StripTarget target{args_.dh + at, 2 * width_, rows, width_ - column};
      strip_to_memory(strip, target);
      strip_to_memory(other, {target.first + width_, target.row_stride, target.rows, target.columns});
      __syncwarp();
      if (args_.scaled_act != nullptr) {
        put_fragment(strip, scaled_act);
        __syncwarp();
        strip_to_memory(strip, {args_.scaled_act + static_cast<int64_t>(first_row) * width_ + column, width_, rows,
                                width_ - column});
        __syncwarp();
      }
    }
    if (args_.partial_dots == nullptr) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // The 4 lanes of a quad hold the columns of a row.
      dots[i] += __shfl_xor_sync(0xffffffffu, dots[i], 1);
      dots[i] += __shfl_xor_sync(0xffffffffu, dots[i], 2);
      const int row = own_row + 8 * i;
      if (lane_index() % 4 == 0 && row < rows) {
        args_.partial_dots[tile.n_tile * args_.rows + first_row + row] = dots[i];
      }
    }
  }

  const Args& args_;
  int width_;
};

}  // namespace

bool hopper_can_run(const Context& context, const GroupedDswigluArgs& args) {
  return kernel_tiers(context).grouped_gemm == Tier::kSm90 && args.groups.groups() <= kMaxGroups && takes_rows(args);
}

void grouped_dswiglu_hopper(const Context& context, const GroupedDswigluArgs& args) {
  const bool fp8 = args.fp8.defined();
  HONE_ASSERT(fp8 ? !args.extra_a.defined() : hopper_can_run(context, args));
  const int64_t rows = args.groups.rows, width = fp8 ? args.fp8.rows : args.w.shape[2];
  ArenaScope scratch(context.scratch());
  const int64_t tiles = (width + StoreDswiglu::kColumns - 1) / StoreDswiglu::kColumns;
  Tensor partial_dots;
  if (args.dweights.defined()) partial_dots = scratch.take({tiles, rows}, DType::kF32);
  if (context.dry() || rows == 0) return;
  const ProductFactors factors = fp8 ? fp8_product_factors(args.groups, args.dout, args.dout_scales, args.token,
                                                           args.fp8, false, StoreDswiglu::kColumns)
                                     : product_factors(args.groups, args.dout, args.token, args.w, true, args.extra_a,
                                                       args.extra_w, false, StoreDswiglu::kColumns);
  HONE_ASSERT(factors.n_tiles == tiles);
  const DswigluArgs to = dswiglu_args(args, partial_dots);
  constexpr const char* kDoing = "differentiating activations of groups";
  if (fp8) {
    launch_product<false, StoreDswiglu, true>(context, kDoing, factors, rows, to);
  } else {
    launch_product<true, StoreDswiglu>(context, kDoing, factors, rows, to);
  }
  if (args.dweights.defined()) {
    add_partial_dots(context, partial_dots, args.groups.offsets, args.assignment, args.dweights);
  }
}

}  // namespace hone::cuda
