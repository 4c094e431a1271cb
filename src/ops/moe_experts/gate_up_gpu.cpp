#include "ops/moe_experts/cuda/biased_rows_cuda.h"
#include "ops/moe_experts/cuda/expert_lora_cuda.h"
#include "ops/moe_experts/cuda/fp8_experts.h"

namespace hone::cuda {

void moe_gate_up(const Context& context, const MoeGateUpArgs& args) {
  if (args.weight.packed) return moe_gate_up_fp8(context, args);
  ArenaScope scratch(context.scratch());
  const DType dtype = args.x.dtype;
  const ExpertLora lora(context, scratch, {args.rows, args.adapters, args.dropout, args.weight.payload.shape, dtype});
  lora.project({args.x, args.rows.token}, args.xa);
  const bool apart = needs_row_passes(args.bias, args.function);
  grouped_gemm(context, {.groups = groups_of(args.rows),
                         .a = args.x,
                         .a_rows = args.rows.token,
                         .w = in_dtype(context, scratch, args.weight.payload, dtype),
                         .extra_a = args.xa,
                         .extra_w = lora.b(scratch, Ranks::kLast),
                         .c = args.h,
                         .activation = apart ? Tensor{} : args.activation,
                         .decode = args.decode});
  if (!apart) return;
  const Tensor bias = args.bias.defined() ? in_dtype(context, scratch, args.bias, dtype) : Tensor{};
  activate_biased_rows(
      context,
      {.rows = args.rows, .bias = bias, .function = args.function, .h = args.h, .activation = args.activation});
}

namespace {

/// dx[t] = Σ over the rows of t of dh W + v A.
void input_grad(const Context& context, const MoeGateUpGradArgs& args, const ExpertLora& lora, const Tensor& v) {
  const DType dtype = args.dh.dtype;
  ArenaScope scratch(context.scratch());
  const Tensor rows = scratch.take({args.dh.shape[0], args.weight.payload.shape[2]}, dtype);
  const bool inside = lora.any() && !lora.drops();
  grouped_gemm(context, {.groups = groups_of(args.rows),
                         .a = args.dh,
                         .w = in_dtype(context, scratch, args.weight.payload, dtype),
                         .w_transposed = true,
                         .extra_a = inside ? v : Tensor{},
                         .extra_w = inside ? lora.a(scratch, Ranks::kLast) : Tensor{},
                         .c = rows});
  if (lora.drops()) lora.add_masked_input_grad(v, rows);
  combine_rows(context, {.rows = args.rows, .y = rows, .dst = args.dx});
}

}  // namespace

void moe_gate_up_grad(const Context& context, const MoeGateUpGradArgs& args) {
  if (args.weight.packed) return moe_gate_up_grad_fp8(context, args);
  ArenaScope scratch(context.scratch());
  const ExpertLora lora(context, scratch,
                        {args.rows, args.adapters, args.dropout, args.weight.payload.shape, args.dh.dtype});
  const ExpertInput x{args.x, args.rows.token}, dh{args.dh};
  if (args.dweight.wanted()) {
    grouped_wgrad(
        context,
        {.groups = groups_of(args.rows), .a = args.dh, .b = args.x, .b_rows = args.rows.token, .dw = args.dweight});
  }
  if (args.dbias.wanted()) bias_rows_grad(context, {.rows = args.rows, .dy = args.dh, .dbias = args.dbias});
  const Tensor v = lora.take_rank_rows(scratch);
  if (args.dx.wanted() || wants_lora_a(args.dadapters)) lora.project_grad(dh, v);
  lora.lora_a_grad(v, x, args.dadapters);
  lora.lora_b_grad(dh, args.xa, args.dadapters);
  if (args.dx.wanted()) input_grad(context, args, lora, v);
}

}  // namespace hone::cuda
