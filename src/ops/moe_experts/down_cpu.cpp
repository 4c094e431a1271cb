#include "ops/moe_experts/activation_rows_cpu.h"
#include "ops/moe_experts/expert_lora_cpu.h"

namespace hone::cpu {

void moe_down(const Context& context, const MoeDownArgs& args) {
  const int64_t rows_count = args.activation.shape[0], hidden = args.weight.shape[1];
  const int64_t intermediate = args.weight.shape[2];
  const DType dtype = args.activation.dtype;
  ArenaScope scratch(context.scratch());
  const Tensor y = scratch.take({rows_count, hidden}, DType::kF32);
  const Tensor wide = any_dropout(args.adapters) ? scratch.take({rows_count, intermediate}, dtype) : Tensor{};
  const std::vector<Tensor> xa = take_rank_rows(scratch, args.adapters, rows_count);
  context.launch([=](ThreadPool& pool) {
    const RowMatrix act{args.activation};
    const auto w_transposed = [&](int64_t e) { return transposed(expert_matrix(args.weight, e)); };
    const float beta = args.bias.defined() ? 1.0f : 0.0f;
    if (args.bias.defined()) fill_bias(pool, args.rows, args.bias, y);
    rows_product(pool, args.rows, act, w_transposed, intermediate, {y}, hidden, 1.0f, beta);
    for (size_t i = 0; i < args.adapters.size(); ++i) {
      const ExpertLora lora(pool, args.rows, args.adapters[i], args.dropout, wide);
      lora.project(lora.masked(act), {xa[i]});
      lora.expand({xa[i]}, y);
    }
    combine_rows(pool, args.rows, y, args.weights, {args.out});
  });
}

namespace {

/// What the gradient of moe_down computes on the way, and which of it is needed.
struct DownGradPlan {
  bool input = false;   // d act: for dh and the router weights
  bool weight = false;  // the weighted activation: for gradients of base weight or adapters

  explicit DownGradPlan(const MoeDownGradArgs& args)
      : input(args.dh.wanted() || args.dweights.wanted()), weight(args.dweight.wanted()) {
    for (const ExpertAdapterGrad& grad : args.dadapters) weight |= grad.lora_a.wanted() || grad.lora_b.wanted();
  }
};

struct DownGradScratch {
  Tensor dact;          // f32 [R, I]
  Tensor weighted_act;  // [R, I]
  Tensor wide;          // f32 [R, I]
  std::vector<Tensor> v, xa;
};

/// dact = dout[token] · W_down, plus the adapters' part; and v, which the gradients of lora_a need again.
void down_input_grad(ThreadPool& pool, const MoeDownGradArgs& args, const DownGradScratch& scratch, bool wants_input) {
  const int64_t hidden = args.weight.shape[1], intermediate = args.weight.shape[2];
  const RowMatrix dout{args.dout, args.rows.token.as<int32_t>()};
  if (wants_input) {
    const auto w = [&](int64_t e) { return expert_matrix(args.weight, e); };
    rows_product(pool, args.rows, dout, w, hidden, {scratch.dact}, intermediate);
  }
  for (size_t i = 0; i < args.adapters.size(); ++i) {
    const ExpertLora lora(pool, args.rows, args.adapters[i], args.dropout, scratch.wide);
    if (wants_input || args.dadapters[i].lora_a.wanted()) lora.project_grad(dout, scratch.v[i]);
    if (wants_input) lora.add_input_grad(scratch.v[i], scratch.dact);
  }
}

/// The router weight of a row has gone into the activation, so dout enters as it is.
void down_weight_grad(ThreadPool& pool, const MoeDownGradArgs& args, const DownGradScratch& scratch) {
  const RowMatrix dout{args.dout, args.rows.token.as<int32_t>()}, act{scratch.weighted_act};
  if (args.dweight.wanted()) weight_product(pool, args.rows, dout, act, args.dweight);
  for (size_t i = 0; i < args.adapters.size(); ++i) {
    const ExpertAdapterGrad& grad = args.dadapters[i];
    if (!grad.lora_a.wanted() && !grad.lora_b.wanted()) continue;
    const ExpertLora lora(pool, args.rows, args.adapters[i], args.dropout, scratch.wide);
    const RowMatrix masked = lora.masked(act);
    if (grad.lora_a.wanted()) lora.lora_a_grad(scratch.v[i], masked, grad.lora_a);
    if (grad.lora_b.wanted()) {
      lora.project(masked, {scratch.xa[i]});
      lora.lora_b_grad(dout, {scratch.xa[i]}, grad.lora_b);
    }
  }
}

}  // namespace

void moe_down_grad(const Context& context, const MoeDownGradArgs& args) {
  const int64_t rows_count = args.h.shape[0], intermediate = args.weight.shape[2];
  const DownGradPlan plan(args);
  ArenaScope arena(context.scratch());
  DownGradScratch scratch;
  if (plan.input) scratch.dact = arena.take({rows_count, intermediate}, DType::kF32);
  if (plan.weight) scratch.weighted_act = arena.take({rows_count, intermediate}, args.h.dtype);
  if (any_dropout(args.adapters)) scratch.wide = arena.take({rows_count, intermediate}, DType::kF32);
  scratch.v = take_rank_rows(arena, args.adapters, rows_count);
  scratch.xa = take_rank_rows(arena, args.adapters, rows_count);
  context.launch([=](ThreadPool& pool) {
    down_input_grad(pool, args, scratch, plan.input);
    activation_grad(pool, {.rows = args.rows,
                           .h = args.h,
                           .weights = args.weights,
                           .dout = args.dout,
                           .bias = args.bias,
                           .function = args.function,
                           .dact = scratch.dact,
                           .weighted_act = scratch.weighted_act,
                           .dh = args.dh,
                           .dweights = args.dweights});
    if (plan.weight) down_weight_grad(pool, args, scratch);
    if (args.dbias.wanted()) {
      bias_grad(pool, args.rows, {args.dout, args.rows.token.as<int32_t>()}, args.weights, args.dbias);
    }
  });
}

}  // namespace hone::cpu
