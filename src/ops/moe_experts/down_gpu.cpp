#include "kernels/cuda/grouped_gemm/gated_rows_cuda.h"
#include "ops/moe_experts/cuda/biased_rows_cuda.h"
#include "ops/moe_experts/cuda/expert_lora_cuda.h"
#include "ops/moe_experts/cuda/fp8_experts.h"

namespace hone::cuda {

void moe_down(const Context& context, const MoeDownArgs& args) {
  if (args.weight.packed) return moe_down_fp8(context, args);
  const DType dtype = args.activation.dtype;
  ArenaScope scratch(context.scratch());
  const ExpertLora lora(context, scratch, {args.rows, args.adapters, args.dropout, args.weight.payload.shape, dtype});
  const Tensor xa = lora.take_rank_rows(scratch);
  lora.project({args.activation}, xa);
  const Tensor y = scratch.take({args.activation.shape[0], args.weight.payload.shape[1]}, dtype);
  grouped_gemm(context, {.groups = groups_of(args.rows),
                         .a = args.activation,
                         .w = in_dtype(context, scratch, args.weight.payload, dtype),
                         .extra_a = xa,
                         .extra_w = lora.b(scratch, Ranks::kLast),
                         .c = y,
                         .decode = args.decode});
  if (args.bias.defined()) add_bias_rows(context, args.rows, in_dtype(context, scratch, args.bias, dtype), y);
  combine_rows(context, {.rows = args.rows, .y = y, .weights = args.weights, .dst = {args.out}});
}

namespace {

/// Results of the activation's gradient; each is computed if defined.
struct ActivationGradients {
  Tensor dh, scaled_act, dweights;
};

/// The activation's gradient from dact, row by row; dact is undefined if only the scaled activation is wanted.
void activation_grad(const Context& context, const MoeDownGradArgs& args, const Tensor& dact,
                     const ActivationGradients& to) {
  if (!needs_row_passes(args.bias, args.function)) {
    return gated_rows_grad(context, {.offsets = args.rows.offsets,
                                     .assignment = args.rows.assignment,
                                     .h = args.h,
                                     .weights = args.weights,
                                     .dact = dact,
                                     .dh = to.dh,
                                     .scaled_act = to.scaled_act,
                                     .dweights = to.dweights});
  }
  ArenaScope scratch(context.scratch());
  const Tensor bias = args.bias.defined() ? in_dtype(context, scratch, args.bias, args.h.dtype) : Tensor{};
  biased_activation_grad(context, {.rows = args.rows,
                                   .h = args.h,
                                   .weights = args.weights,
                                   .dout = args.dout,
                                   .bias = bias,
                                   .function = args.function,
                                   .dact = dact,
                                   .dh = to.dh,
                                   .scaled_act = to.scaled_act,
                                   .dweights = to.dweights});
}

/// Computes dh and the gradient of the router's weights, and the scaled activation if it is defined.
void input_grad(const Context& context, const MoeDownGradArgs& args, const ExpertLora& lora, const Tensor& v,
                const Tensor& scaled_act) {
  const DType dtype = args.h.dtype;
  const RowGroups groups = groups_of(args.rows);
  ArenaScope scratch(context.scratch());
  const Tensor weight = in_dtype(context, scratch, args.weight.payload, dtype);
  const bool in_place = args.dh.wanted() && args.dh.beta == 0.0f;
  const Tensor dh = in_place ? args.dh.dst : scratch.take(args.h.shape, dtype);
  const Tensor dweights = args.dweights.wanted() ? scratch.take(args.weights.shape, DType::kF32) : Tensor{};
  // Choices without a row get no value from the kernels.
  if (dweights.defined() && args.rows.partial()) clear(context, dweights);
  const bool apart = needs_row_passes(args.bias, args.function);
  if (lora.drops() || apart) {
    // With a mask between the adapters' product and dact, or an activation that the product does not support, dact is
    // computed before the activation's gradient. The scaled activation overwrites it.
    const Tensor dact =
        scaled_act.defined() ? scaled_act : scratch.take({groups.rows, args.weight.payload.shape[2]}, dtype);
    const bool inside = lora.any() && !lora.drops();
    grouped_gemm(context, {.groups = groups,
                           .a = args.dout,
                           .a_rows = args.rows.token,
                           .w = weight,
                           .w_transposed = true,
                           .extra_a = inside ? v : Tensor{},
                           .extra_w = inside ? lora.a(scratch, Ranks::kLast) : Tensor{},
                           .c = dact});
    if (lora.drops()) lora.add_masked_input_grad(v, dact);
    activation_grad(context, args, dact, {dh, scaled_act, dweights});
  } else {
    grouped_dswiglu(context, {.groups = groups,
                              .token = args.rows.token,
                              .assignment = args.rows.assignment,
                              .dout = args.dout,
                              .w = weight,
                              .extra_a = v,
                              .extra_w = lora.a(scratch, Ranks::kLast),
                              .h = args.h,
                              .weights = args.weights,
                              .dh = dh,
                              .scaled_act = scaled_act,
                              .dweights = dweights});
  }
  if (args.dh.wanted() && !in_place) store_gradient(context, dh, args.dh);
  if (args.dweights.wanted()) store_gradient(context, dweights, args.dweights);
}

}  // namespace

void moe_down_grad(const Context& context, const MoeDownGradArgs& args) {
  if (args.weight.packed) return moe_down_grad_fp8(context, args);
  const bool wants_input = args.dh.wanted() || args.dweights.wanted();
  const bool wants_a = wants_lora_a(args.dadapters), wants_b = wants_lora_b(args.dadapters);
  ArenaScope scratch(context.scratch());
  const ExpertLora lora(context, scratch,
                        {args.rows, args.adapters, args.dropout, args.weight.payload.shape, args.h.dtype});
  const ExpertInput dout{args.dout, args.rows.token};
  const Tensor v = lora.take_rank_rows(scratch);
  if (wants_input || wants_a) lora.project_grad(dout, v);
  // The router's weight of a row is part of the activation, so that products read dout unchanged.
  const bool wants_factor = args.dweight.wanted() || wants_a || wants_b;
  const Tensor scaled_act =
      wants_factor ? scratch.take({args.h.shape[0], args.weight.payload.shape[2]}, args.h.dtype) : Tensor{};
  if (wants_input) {
    input_grad(context, args, lora, v, scaled_act);
  } else if (wants_factor) {
    activation_grad(context, args, {}, {.dh = {}, .scaled_act = scaled_act, .dweights = {}});
  }
  if (args.dweight.wanted()) {
    grouped_wgrad(context, {.groups = groups_of(args.rows),
                            .a = args.dout,
                            .a_rows = args.rows.token,
                            .b = scaled_act,
                            .dw = args.dweight});
  }
  if (args.dbias.wanted()) {
    bias_rows_grad(
        context, {.rows = args.rows, .dy = args.dout, .gathered = true, .weights = args.weights, .dbias = args.dbias});
  }
  lora.lora_a_grad(v, {scaled_act}, args.dadapters);
  if (wants_b) {
    const Tensor xa = lora.take_rank_rows(scratch);
    lora.project({scaled_act}, xa);
    lora.lora_b_grad(dout, xa, args.dadapters);
  }
}

}  // namespace hone::cuda
