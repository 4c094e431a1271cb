#include "ops/linear/linear.h"

#include "kernels/cuda/low_rank/low_rank_cuda.h"
#include "kernels/cuda/low_rank/partial_sums_cuda.h"
#include "kernels/cuda/matmul/matmul_cuda.h"

namespace hone::cuda {

namespace {

/// For an adapter's product that the base product is to be added to: of `sum`'s size, in other memory where `sum` is
/// bfloat16, since cuBLASLt rounds once only there (matmul_cuda.h).
Tensor take_part(ArenaScope& scratch, const Tensor& sum) {
  return sum.dtype == DType::kBF16 ? scratch.take(sum.shape, sum.dtype) : sum;
}

/// base.c = the base product + part, which take_part() gave.
void add_base(const Context& context, MatmulArgs base, const Tensor& part) {
  base.beta = 1.0f;
  base.d = part;
  matmul(context, base);
}

}  // namespace

void linear(const Context& context, const LinearArgs& args) {
  const MatmulArgs base{
      .a = args.x, .b = args.w.payload, .b_transposed = true, .c = args.y, .operands = args.x.dtype, .bias = args.bias};
  if (!args.xa.defined()) return matmul(context, base);
  // The adapter's product goes first: the base product adds it where it stores y, which saves a pass over y.
  ArenaScope scratch(context.scratch());
  const Tensor part = take_part(scratch, args.y);
  low_rank_widen(
      context,
      {.thin = args.xa, .factor = args.lora_b, .factor_transposed = true, .alpha = args.scaling, .wide = {part, 0.0f}});
  add_base(context, base, part);
}

namespace {

/// dx = dy W + (the adapter's part + beta · dx), as in linear().
void input_grad(const Context& context, const LinearGradArgs& args) {
  const Tensor& dx = args.dx.dst;
  const MatmulArgs base{.a = args.dy, .b = args.w.payload, .c = dx, .operands = args.dy.dtype, .beta = args.dx.beta};
  if (!args.lora_a.defined()) return matmul(context, base);
  ArenaScope scratch(context.scratch());
  const Tensor part = take_part(scratch, dx);
  low_rank_widen(context, {.thin = args.dxa.dst,
                           .factor = args.lora_a,
                           .dropout = args.dropout,
                           .alpha = lora_keep_scale(args.dropout.probability),
                           .added = dx,
                           .wide = {part, args.dx.beta}});
  add_base(context, base, part);
}

}  // namespace

void linear_grad(const Context& context, const LinearGradArgs& args) {
  const DType dtype = args.dy.dtype;
  if (args.dxa.wanted()) {
    low_rank_narrow(
        context,
        {.wide = args.dy, .factor = args.lora_b, .factor_transposed = true, .alpha = args.scaling, .thin = args.dxa});
  }
  if (args.dx.wanted()) input_grad(context, args);
  if (args.dw.wanted()) {
    matmul(
        context,
        {.a = args.dy, .a_transposed = true, .b = args.x, .c = args.dw.dst, .operands = dtype, .beta = args.dw.beta});
  }
  if (args.dbias.wanted()) sum_over_rows(context, args.dy, args.dbias);
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
