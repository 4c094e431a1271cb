#include "core/cpu/cpu_features.h"
#include "ops/moe_experts/cpu/activation_rows_cpu.h"
#include "ops/moe_experts/cpu/base_experts_cpu.h"
#include "ops/moe_experts/cpu/expert_lora_cpu.h"
#include "ops/moe_experts/cpu/tile_products_cpu.h"

namespace hone::cpu {

namespace {

/// Computes xa of all adapters.
void project_inputs(ThreadPool& pool, const MoeGateUpArgs& args, const Tensor& wide) {
  clear_rank_padding(pool, args.adapters, args.xa);
  for (size_t i = 0; i < args.adapters.size(); ++i) {
    const ExpertLora lora(pool, args.rows, args.adapters[i], args.dropout, wide, args.x.dtype);
    lora.project(lora.masked({args.x, args.rows.token.as<int32_t>()}), rank_columns(args.adapters, i, args.xa));
  }
}

/// Computes h and the activation by separate products and passes over rows.
void gate_up_products(ThreadPool& pool, const MoeGateUpArgs& args, const BaseExperts& base, const ExpertBias& bias) {
  const RowMatrix x{args.x, args.rows.token.as<int32_t>()};
  // The adapters' products go first: in bfloat16 they are rounded by their own size, not by that of h.
  const bool adapted = !args.adapters.empty();
  if (adapted) expand_all(pool, args.rows, args.adapters, args.xa, args.x.dtype, args.h);
  base.transposed_product(pool, args.rows, x, bias.ready(pool), {args.h}, adapted ? 1.0f : 0.0f);
  activate_rows(pool, args.rows, args.function, args.h, args.activation);
}

/// dx_rows f32 [R, H] = dh W + the adapters' part.
void input_grad_products(ThreadPool& pool, const MoeGateUpGradArgs& args, const BaseExperts& base, const Tensor& wide,
                         const Tensor& v, const Tensor& dx_rows) {
  base.product(pool, args.rows, {args.dh}, dx_rows);
  for (size_t i = 0; i < args.adapters.size(); ++i) {
    ExpertLora(pool, args.rows, args.adapters[i], args.dropout, wide, args.dh.dtype)
        .add_input_grad(rank_columns(args.adapters, i, v), dx_rows);
  }
}

}  // namespace

void moe_gate_up(const Context& context, const MoeGateUpArgs& args) {
  const int64_t rows_count = args.h.shape[0], hidden = args.x.shape[1];
  const bool tiles = takes_tiles(hidden, args.activation.shape[1], args.x.dtype, args.weight.payload.dtype);
  ArenaScope scratch(context.scratch());
  const bool drops = any_dropout(args.adapters), projects = tiles && !drops;
  const Tensor wide = drops ? scratch.take({rows_count, hidden}, args.x.dtype) : Tensor{};
  std::optional<BaseExperts> base;
  if (!tiles) base.emplace(scratch, args.weight, rows_count, args.x.dtype);
  const ExpertBias bias(scratch, tiles ? Tensor{} : args.bias, args.h.dtype);
  context.note_kernel("experts", tiles ? "AMX tiles" : name_of(active_isa()));
  context.launch([=](ThreadPool& pool) {
    if (!projects) project_inputs(pool, args, wide);
    tiles ? tile_gate_up(pool, args, {args.xa, !projects}) : gate_up_products(pool, args, *base, bias);
  });
}

void moe_gate_up_grad(const Context& context, const MoeGateUpGradArgs& args) {
  const int64_t rows_count = args.dh.shape[0], hidden = args.weight.payload.shape[2];
  const bool wants_dx = args.dx.wanted(), drops = any_dropout(args.adapters);
  const bool tiles =
      !drops && takes_tiles(hidden, args.function.width(args.dh.shape[1]), args.dh.dtype, args.weight.payload.dtype);
  ArenaScope scratch(context.scratch());
  const DType rows_dtype = tiles ? DType::kBF16 : DType::kF32;
  const Tensor dx_rows = wants_dx ? scratch.take({rows_count, hidden}, rows_dtype) : Tensor{};
  const Tensor wide = drops ? scratch.take({rows_count, hidden}, DType::kF32) : Tensor{};
  const Tensor v = take_rank_rows(scratch, args.adapters, rows_count, DType::kF32);
  std::optional<BaseExperts> base;
  if (wants_dx && !tiles) base.emplace(scratch, args.weight, rows_count, args.dh.dtype);
  context.launch([=](ThreadPool& pool) {
    const RowMatrix x{args.x, args.rows.token.as<int32_t>()}, dh{args.dh};
    if (args.dweight.wanted()) weight_product(pool, args.rows, dh, x, args.dweight);
    if (args.dbias.wanted()) bias_grad(pool, args.rows, dh, {}, args.dbias);
    // The tile engine also computes v.
    if (wants_dx && tiles) tile_input_grad(pool, args, v, dx_rows);
    for (size_t i = 0; i < args.adapters.size(); ++i) {
      const ExpertLora lora(pool, args.rows, args.adapters[i], args.dropout, wide, args.dh.dtype);
      const ExpertAdapterGrad& grad = args.dadapters[i];
      const RowMatrix v_columns = rank_columns(args.adapters, i, v);
      const bool wants_v = wants_dx || grad.lora_a.wanted();
      if (wants_v && !(wants_dx && tiles)) lora.project_grad(dh, v_columns);
      if (grad.lora_a.wanted()) lora.lora_a_grad(v_columns, lora.masked(x), grad.lora_a);
      if (grad.lora_b.wanted()) lora.lora_b_grad(dh, rank_columns(args.adapters, i, args.xa), grad.lora_b);
    }
    if (base) input_grad_products(pool, args, *base, wide, v, dx_rows);
    if (wants_dx) combine_rows(pool, args.rows, dx_rows, {}, args.dx);
  });
}

}  // namespace hone::cpu
