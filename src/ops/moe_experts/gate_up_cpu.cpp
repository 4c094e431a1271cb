#include "ops/moe_experts/activation_rows_cpu.h"
#include "ops/moe_experts/expert_lora_cpu.h"

namespace hone::cpu {

void moe_gate_up(const Context& context, const MoeGateUpArgs& args) {
  const int64_t rows_count = args.h.shape[0], hidden = args.x.shape[1];
  ArenaScope scratch(context.scratch());
  const Tensor wide = any_dropout(args.adapters) ? scratch.take({rows_count, hidden}, args.x.dtype) : Tensor{};
  context.launch([=](ThreadPool& pool) {
    const RowMatrix x{args.x, args.rows.token.as<int32_t>()};
    const auto w_transposed = [&](int64_t e) { return transposed(expert_matrix(args.weight, e)); };
    const float beta = args.bias.defined() ? 1.0f : 0.0f;
    if (args.bias.defined()) fill_bias(pool, args.rows, args.bias, args.h);
    rows_product(pool, args.rows, x, w_transposed, hidden, {args.h}, args.h.shape[1], 1.0f, beta);
    for (size_t i = 0; i < args.adapters.size(); ++i) {
      const ExpertLora lora(pool, args.rows, args.adapters[i], args.dropout, wide);
      const RowMatrix xa = rank_columns(args.adapters, i, args.xa);
      lora.project(lora.masked(x), xa);
      lora.expand(xa, args.h);
    }
    activate_rows(pool, args.function, args.h, args.activation);
  });
}

void moe_gate_up_grad(const Context& context, const MoeGateUpGradArgs& args) {
  const int64_t rows_count = args.dh.shape[0], hidden = args.weight.shape[2];
  const bool wants_dx = args.dx.wanted();
  ArenaScope scratch(context.scratch());
  const Tensor dx_rows = wants_dx ? scratch.take({rows_count, hidden}, DType::kF32) : Tensor{};
  const Tensor wide = any_dropout(args.adapters) ? scratch.take({rows_count, hidden}, DType::kF32) : Tensor{};
  const std::vector<Tensor> v = take_rank_rows(scratch, args.adapters, rows_count);
  context.launch([=](ThreadPool& pool) {
    const RowMatrix x{args.x, args.rows.token.as<int32_t>()}, dh{args.dh};
    if (args.dweight.wanted()) weight_product(pool, args.rows, dh, x, args.dweight);
    if (args.dbias.wanted()) bias_grad(pool, args.rows, dh, {}, args.dbias);
    if (wants_dx) {
      const auto w = [&](int64_t e) { return expert_matrix(args.weight, e); };
      rows_product(pool, args.rows, dh, w, args.dh.shape[1], {dx_rows}, hidden);
    }
    for (size_t i = 0; i < args.adapters.size(); ++i) {
      const ExpertLora lora(pool, args.rows, args.adapters[i], args.dropout, wide);
      const ExpertAdapterGrad& grad = args.dadapters[i];
      if (wants_dx || grad.lora_a.wanted()) lora.project_grad(dh, v[i]);
      if (grad.lora_a.wanted()) lora.lora_a_grad(v[i], lora.masked(x), grad.lora_a);
      if (grad.lora_b.wanted()) lora.lora_b_grad(dh, rank_columns(args.adapters, i, args.xa), grad.lora_b);
      if (wants_dx) lora.add_input_grad(v[i], dx_rows);
    }
    if (wants_dx) combine_rows(pool, args.rows, dx_rows, {}, args.dx);
  });
}

}  // namespace hone::cpu
