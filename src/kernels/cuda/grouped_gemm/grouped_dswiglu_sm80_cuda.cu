// The gradient of an expert's second product and of its gated activation on tier sm80, in one pass: the product dact,
// and an epilogue that reads h and writes dh, the scaled activation and partial sums of the router's gradient.
//
// Tuned for 128 experts of 2048 x 768 and 16,384 tokens, top-8. One H200 limited to this tier, 2026-11-23: 228 TFLOP/s
// (sm90: 419). Registers (ptxas 13.0): 255; spills: 40 bytes stored and 152 loaded on 8.0, 4 and 4 on 9.0. Raw:
// bench/results/sm80-kernels-2026-11-23.txt, sm80-registers-2026-11-23.txt.
#include "kernels/cuda/grouped_gemm/grouped_gemm_sm80.h"
#include "kernels/cuda/grouped_gemm/grouped_tensor_cores_cuda.h"
#include "kernels/cuda/grouped_gemm/partial_dots_cuda.h"
#include "kernels/cuda/grouped_gemm/sm80_epilogue_cuda.h"
#include "kernels/cuda/grouped_gemm/sm80_product_cuda.h"

namespace hone::cuda {

using namespace sm80;

namespace {

/// The accumulators are dact; see grouped_dswiglu.
class StoreDswiglu {
 public:
  using Args = DswigluArgs;
  static constexpr bool kHalves = false;

  __device__ StoreDswiglu(const Args& args, const ProductFactors& f) : args_(args), width_(f.n) {}

  __device__ void write(const WarpSums& sums, const GroupTile& tile) const {
    const int column = tile.n_tile * kTileColumns + warp_across() * kWarpColumns;
#pragma unroll
    for (int i = 0; i < kWarpRows / 16; ++i) {
      uint32_t gate[2][kParts][4], up[2][kParts][4];
      float scales[2];
      // Issues all loads of 16 rows before their first use: nothing else hides their latency.
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row() + i * 16 + accumulator_row() + half * 8;
        const bool row_exists = row < tile.rows;
        const int64_t at = tile.row + row;
        scales[half] = row_exists ? __bfloat162float(args_.weights[args_.assignment[at]]) : 0.0f;
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const bool exists = row_exists && column + part * kQuadColumns + quad_column() < width_;
          const __nv_bfloat16* from = args_.h + at * 2 * width_ + column + part * kQuadColumns;
          load_quad(gate[half][part], from, exists);
          load_quad(up[half][part], from + width_, exists);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row() + i * 16 + accumulator_row() + half * 8;
        const bool row_exists = row < tile.rows;
        const int64_t at = tile.row + row;
        float dot = 0.0f;
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const int first = column + part * kQuadColumns;
          uint32_t(&g)[4] = gate[half][part];
          uint32_t(&u)[4] = up[half][part];
          uint32_t scaled_act[4];
          transpose_quad(g);
          transpose_quad(u);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float2 of_gate = unpack_bf16(g[j]), of_up = unpack_bf16(u[j]);
            const float(&dact)[4] = sums[i][part * 4 + j];
            const DswigluElement x = differentiate(dact[2 * half], of_gate.x, of_up.x, scales[half], dot);
            const DswigluElement y = differentiate(dact[2 * half + 1], of_gate.y, of_up.y, scales[half], dot);
            g[j] = pack_bf16(x.dgate, y.dgate);
            u[j] = pack_bf16(x.dup, y.dup);
            scaled_act[j] = pack_bf16(x.scaled_act, y.scaled_act);
          }
          const bool exists = row_exists && first + quad_column() < width_;
          store_quad(args_.dh + at * 2 * width_ + first, g, exists);
          store_quad(args_.dh + (at * 2 + 1) * width_ + first, u, exists);
          if (args_.scaled_act != nullptr) store_quad(args_.scaled_act + at * width_ + first, scaled_act, exists);
        }
        if (args_.partial_dots == nullptr) continue;
        dot += __shfl_xor_sync(0xffffffffu, dot, 1);
        dot += __shfl_xor_sync(0xffffffffu, dot, 2);
        if (row_exists && lane_of_warp() % 4 == 0) {
          args_.partial_dots[int64_t{tile.n_tile * kWarpsAcross + warp_across()} * args_.rows + at] = dot;
        }
      }
    }
  }

 private:
  static constexpr int kParts = kWarpColumns / kQuadColumns;

  const Args& args_;
  int width_;
};

}  // namespace

bool sm80_can_run(const Context& context, const GroupedDswigluArgs& args) {
  return kernel_tiers(context).grouped_gemm == Tier::kSm80 && takes_rows(args);
}

void grouped_dswiglu_sm80(const Context& context, const GroupedDswigluArgs& args) {
  HONE_ASSERT(sm80_can_run(context, args));
  const int64_t rows = args.groups.rows, width = args.w.shape[2];
  ArenaScope scratch(context.scratch());
  const int64_t parts = (width + kTileColumns - 1) / kTileColumns * kWarpsAcross;
  Tensor partial_dots;
  if (args.dweights.defined()) partial_dots = scratch.take({parts, rows}, DType::kF32);
  if (context.dry() || rows == 0) return;
  const ProductFactors factors =
      product_factors(args.groups, args.dout, args.token, args.w, true, args.extra_a, args.extra_w, false);
  launch_product<true, StoreDswiglu>(context, "differentiating activations of groups", factors, rows,
                                     dswiglu_args(args, partial_dots));
  if (args.dweights.defined()) {
    add_partial_dots(context, partial_dots, args.groups.offsets, args.assignment, args.dweights);
  }
}

}  // namespace hone::cuda
