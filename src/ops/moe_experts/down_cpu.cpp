#include "ops/moe_experts/cpu/activation_rows_cpu.h"
#include "ops/moe_experts/cpu/base_experts_cpu.h"
#include "ops/moe_experts/cpu/expert_lora_cpu.h"
#include "ops/moe_experts/cpu/tile_products_cpu.h"

namespace hone::cpu {

namespace {

/// y f32 [R, H] = the activation times W, plus its bias and adapters.
void down_products(ThreadPool& pool, const MoeDownArgs& args, const BaseExperts& base, const ExpertBias& bias,
                   const Tensor& xa, const Tensor& y) {
  base.transposed_product(pool, args.rows, {args.activation}, bias.ready(pool), {y}, 0.0f);
  for (size_t i = 0; i < args.adapters.size(); ++i) {
    ExpertLora(pool, args.rows, args.adapters[i], args.dropout, {}, args.activation.dtype)
        .expand(rank_columns(args.adapters, i, xa), y, 1.0f);
  }
}

}  // namespace

void moe_down(const Context& context, const MoeDownArgs& args) {
  const int64_t rows_count = args.activation.shape[0], hidden = args.weight.payload.shape[1];
  const int64_t intermediate = args.weight.payload.shape[2];
  const DType dtype = args.activation.dtype;
  const bool tiles = takes_tiles(hidden, intermediate, dtype, args.weight.payload.dtype);
  ArenaScope scratch(context.scratch());
  const Tensor y = scratch.take({rows_count, hidden}, tiles ? DType::kBF16 : DType::kF32);
  const bool drops = any_dropout(args.adapters), projects = tiles && !drops;
  const Tensor wide = drops ? scratch.take({rows_count, intermediate}, dtype) : Tensor{};
  const Tensor xa = projects ? Tensor{} : take_rank_rows(scratch, args.adapters, rows_count, DType::kF32);
  std::optional<BaseExperts> base;
  if (!tiles) base.emplace(scratch, args.weight, rows_count, dtype);
  const ExpertBias bias(scratch, tiles ? Tensor{} : args.bias, y.dtype);
  context.launch([=](ThreadPool& pool) {
    if (!projects) {
      clear_rank_padding(pool, args.adapters, xa);
      for (size_t i = 0; i < args.adapters.size(); ++i) {
        const ExpertLora lora(pool, args.rows, args.adapters[i], args.dropout, wide, dtype);
        lora.project(lora.masked({args.activation}), rank_columns(args.adapters, i, xa));
      }
    }
    tiles ? tile_down(pool, args, {xa, !projects}, y) : down_products(pool, args, *base, bias, xa, y);
    combine_rows(pool, args.rows, y, args.weights, {args.out});
  });
}

namespace {

/// The intermediate results that the gradient of moe_down needs.
struct DownGradPlan {
  bool input = false;   // d act: for dh and the router weights
  bool weight = false;  // the weighted activation: for gradients of base weights
                        // or adapters

  explicit DownGradPlan(const MoeDownGradArgs& args)
      : input(args.dh.wanted() || args.dweights.wanted()), weight(args.dweight.wanted()) {
    for (const ExpertAdapterGrad& grad : args.dadapters) weight |= grad.lora_a.wanted() || grad.lora_b.wanted();
  }
};

struct DownGradScratch {
  Tensor dact;          // f32 [R, I], undefined if tiles do not need it
  Tensor weighted_act;  // [R, I]
  Tensor wide;          // f32 [R, I]
  Tensor v, xa;         // f32 [R, J]
  Tensor dots;          // f32 [R, dot_parts] if tiles store parts of <dact, act>
};

void project_grads(ThreadPool& pool, const MoeDownGradArgs& args, const DownGradScratch& scratch, bool wants_input) {
  for (size_t i = 0; i < args.adapters.size(); ++i) {
    if (!wants_input && !args.dadapters[i].lora_a.wanted()) continue;
    ExpertLora(pool, args.rows, args.adapters[i], args.dropout, scratch.wide, args.h.dtype)
        .project_grad({args.dout, args.rows.token.as<int32_t>()}, rank_columns(args.adapters, i, scratch.v));
  }
}

/// dact = dout[token] · W_down, plus the adapters' part.
void down_input_grad(ThreadPool& pool, const MoeDownGradArgs& args, const BaseExperts& base,
                     const DownGradScratch& scratch) {
  base.product(pool, args.rows, {args.dout, args.rows.token.as<int32_t>()}, scratch.dact);
  for (size_t i = 0; i < args.adapters.size(); ++i) {
    ExpertLora(pool, args.rows, args.adapters[i], args.dropout, scratch.wide, args.h.dtype)
        .add_input_grad(rank_columns(args.adapters, i, scratch.v), scratch.dact);
  }
}

/// The router weight of a row is part of the activation, so dout is used unchanged.
void down_weight_grad(ThreadPool& pool, const MoeDownGradArgs& args, const DownGradScratch& scratch) {
  const RowMatrix dout{args.dout, args.rows.token.as<int32_t>()}, act{scratch.weighted_act};
  if (args.dweight.wanted()) weight_product(pool, args.rows, dout, act, args.dweight);
  for (size_t i = 0; i < args.adapters.size(); ++i) {
    const ExpertAdapterGrad& grad = args.dadapters[i];
    if (!grad.lora_a.wanted() && !grad.lora_b.wanted()) continue;
    const ExpertLora lora(pool, args.rows, args.adapters[i], args.dropout, scratch.wide, args.h.dtype);
    const RowMatrix masked = lora.masked(act);
    if (grad.lora_a.wanted()) lora.lora_a_grad(rank_columns(args.adapters, i, scratch.v), masked, grad.lora_a);
    if (grad.lora_b.wanted()) {
      const RowMatrix xa = rank_columns(args.adapters, i, scratch.xa);
      lora.project(masked, xa);
      lora.lora_b_grad(dout, xa, grad.lora_b);
    }
  }
}

}  // namespace

void moe_down_grad(const Context& context, const MoeDownGradArgs& args) {
  const int64_t rows_count = args.h.shape[0], intermediate = args.weight.payload.shape[2];
  const DownGradPlan plan(args);
  const bool drops = any_dropout(args.adapters);
  const bool tiles = plan.input && !drops &&
                     takes_tiles(args.weight.payload.shape[1], intermediate, args.h.dtype, args.weight.payload.dtype);
  ArenaScope arena(context.scratch());
  DownGradScratch scratch;
  if (plan.input && !tiles) scratch.dact = arena.take({rows_count, intermediate}, DType::kF32);
  if (plan.weight) scratch.weighted_act = arena.take({rows_count, intermediate}, args.h.dtype);
  if (drops) scratch.wide = arena.take({rows_count, intermediate}, DType::kF32);
  if (tiles && args.dweights.wanted()) {
    scratch.dots = arena.take({rows_count, dot_parts(intermediate)}, DType::kF32);
  }
  scratch.v = take_rank_rows(arena, args.adapters, rows_count, DType::kF32);
  scratch.xa = take_rank_rows(arena, args.adapters, rows_count, DType::kF32);
  std::optional<BaseExperts> base;
  if (plan.input && !tiles) base.emplace(arena, args.weight, rows_count, args.h.dtype);
  context.launch([=](ThreadPool& pool) {
    const ActivationGradArgs activation{.rows = args.rows,
                                        .h = args.h,
                                        .weights = args.weights,
                                        .dout = args.dout,
                                        .bias = args.bias,
                                        .function = args.function,
                                        .dact = scratch.dact,
                                        .weighted_act = scratch.weighted_act,
                                        .dh = args.dh,
                                        .dweights = args.dweights};
    if (tiles) {
      tile_activation_grad(pool, args, activation, scratch.v, scratch.dots);
      if (args.dweights.wanted()) router_weights_grad(pool, activation, scratch.dots);
    } else {
      project_grads(pool, args, scratch, plan.input);
      if (base) down_input_grad(pool, args, *base, scratch);
      activation_grad(pool, activation);
    }
    if (args.dweights.wanted()) clear_weights_grad_elsewhere(pool, args.rows, args.dweights);
    if (plan.weight) down_weight_grad(pool, args, scratch);
    if (args.dbias.wanted()) {
      bias_grad(pool, args.rows, {args.dout, args.rows.token.as<int32_t>()}, args.weights, args.dbias);
    }
  });
}

}  // namespace hone::cpu
