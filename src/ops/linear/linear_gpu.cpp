#include "ops/linear/linear.h"

#include "kernels/cuda/low_rank/low_rank_cuda.h"
#include "kernels/cuda/low_rank/partial_sums_cuda.h"
#include "kernels/cuda/matmul/matmul_cuda.h"

namespace hone::cuda {

void linear(const Context& context, const LinearArgs& args) {
  // The adapter's product goes first: the base product adds to it where it stores y, which saves a pass over y.
  const bool adapted = args.xa.defined();
  if (adapted) {
    low_rank_widen(context, {.thin = args.xa,
                             .factor = args.lora_b,
                             .factor_transposed = true,
                             .alpha = args.scaling,
                             .wide = {args.y, 0.0f}});
  }
  matmul(context, {.a = args.x,
                   .b = args.w.payload,
                   .b_transposed = true,
                   .c = args.y,
                   .operands = args.x.dtype,
                   .beta = adapted ? 1.0f : 0.0f,
                   .bias = args.bias});
}

void linear_grad(const Context& context, const LinearGradArgs& args) {
  const DType dtype = args.dy.dtype;
  if (args.dx.wanted()) {
    matmul(context, {.a = args.dy, .b = args.w.payload, .c = args.dx.dst, .operands = dtype, .beta = args.dx.beta});
  }
  if (args.dw.wanted()) {
    matmul(
        context,
        {.a = args.dy, .a_transposed = true, .b = args.x, .c = args.dw.dst, .operands = dtype, .beta = args.dw.beta});
  }
  if (args.dbias.wanted()) sum_over_rows(context, args.dy, args.dbias);
  if (args.dxa.wanted()) {
    low_rank_narrow(
        context,
        {.wide = args.dy, .factor = args.lora_b, .factor_transposed = true, .alpha = args.scaling, .thin = args.dxa});
  }
  if (args.dlora_b.wanted()) {
    low_rank_factor(
        context,
        {.thin = args.xa, .wide = args.dy, .alpha = args.scaling, .factor = args.dlora_b, .factor_transposed = true});
  }
}

void lora_down(const Context& context, const LoraDownArgs& args) {
  low_rank_narrow(context, {.wide = args.x,
                            .factor = args.lora_a,
                            .dropout = args.dropout,
                            .alpha = lora_keep_scale(args.dropout.probability),
                            .thin = {args.xa, 0.0f}});
}

void lora_down_grad(const Context& context, const LoraDownGradArgs& args) {
  const float scale = lora_keep_scale(args.dropout.probability);
  if (args.dx.wanted()) {
    low_rank_widen(context,
                   {.thin = args.dxa, .factor = args.lora_a, .dropout = args.dropout, .alpha = scale, .wide = args.dx});
  }
  if (args.dlora_a.wanted()) {
    low_rank_factor(
        context, {.thin = args.dxa, .wide = args.x, .dropout = args.dropout, .alpha = scale, .factor = args.dlora_a});
  }
}

}  // namespace hone::cuda
