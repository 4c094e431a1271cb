#include "ops/moe_experts/expert_parts.h"

#include <algorithm>

namespace hone {

LayerExperts layer_experts(const Tape& tape, Var x, const RoutedTokens& routed, const ExpertWeights& weights,
                           const ExpertAdapters& adapters, const LoraDropoutContext& dropout) {
  const Shape up = weights.gate_up->shape();  // [E, C, H]
  HONE_ASSERT(weights.down->shape() == (Shape{up[0], up[2], weights.function.width(up[1])}));
  HONE_ASSERT(tape.shape(x) == (Shape{tape.shape(routed.ids)[0], up[2]}));
  HONE_ASSERT(tape.shape(routed.weights) == tape.shape(routed.ids) && tape.dtype(routed.weights) == tape.dtype(x));
  LayerExperts experts{.gate_up = {weights.gate_up, weights.gate_up_bias, adapters.gate_up},
                       .down = {weights.down, weights.down_bias, adapters.down},
                       .function = weights.function,
                       .dropout = dropout};
  for (const ExpertHalf* half : {&experts.gate_up, &experts.down}) half->check(tape.training(), dropout);
  return experts;
}

PartGradients::PartGradients(const Context& context, const LayerExperts& experts)
    : gate_up_(context, *experts.gate_up.weight),
      down_(context, *experts.down.weight),
      gate_up_bias_(experts.gate_up.bias_grad()),
      down_bias_(experts.down.bias_grad()),
      gate_up_adapters_(experts.gate_up.adapter_grads()),
      down_adapters_(experts.down.adapter_grads()) {}

void PartGradients::store() const {
  gate_up_.store();
  down_.store();
}

void PartGradients::keep() {
  for (GradDest* dest : {&gate_up_.dest, &down_.dest, &gate_up_bias_, &down_bias_}) dest->beta = 1.0f;
  for (std::vector<ExpertAdapterGrad>* grads : {&gate_up_adapters_, &down_adapters_}) {
    for (ExpertAdapterGrad& grad : *grads) grad.lora_a.beta = grad.lora_b.beta = 1.0f;
  }
}

namespace {

WeightProduct product_of(const ExpertHalf& half, const Context& context, const MlpActivation& function, bool fp8) {
  return fp8 ? half.product(context, function) : WeightProduct::kExperts;
}

}  // namespace

ExpertsPass::ExpertsPass(const Tape& tape, const LayerExperts& experts, bool fp8)
    : context_(tape.context()),
      experts_(experts),
      training_(tape.training()),
      gate_up_(context_, *experts.gate_up.weight, product_of(experts.gate_up, context_, experts.function, fp8)),
      down_(context_, *experts.down.weight, product_of(experts.down, context_, experts.function, fp8)) {}

TokenRows ExpertsPass::tokens(const Tensor& x, const Tensor& ids, const Tensor& weights, const Tensor& dout) const {
  const bool drops = training_ && (experts_.gate_up.drops() || experts_.down.drops());
  return {.x = x,
          .ids = ids,
          .weights = weights,
          .dout = dout,
          .sample_ids = drops ? experts_.dropout.sample_ids : Tensor{},
          .positions = drops ? experts_.dropout.positions : Tensor{}};
}

PartRows ExpertsPass::rows(ArenaScope& scratch, const TokenRows& part) const {
  const ExpertHalf& half = experts_.gate_up;
  const int64_t here = half.weight->local_shape()[0], all = half.weight->shape()[0];
  const int64_t k = part.ids.shape[1], most = part.count() * std::min(k, here), columns = half.weight->shape()[1];
  const DType dtype = part.x.dtype;
  PartRows to{.rows = {.offsets = scratch.take({here + 1}, DType::kI64),
                       .token = scratch.take({most}, DType::kI32),
                       .assignment = scratch.take({most}, DType::kI32),
                       .row = scratch.take({part.count(), k}, DType::kI32),
                       .first_expert = experts_.first_expert,
                       .all_experts = here == all ? 0 : all},
              .h = scratch.take({most, columns}, dtype),
              .activation = scratch.take({most, experts_.function.width(columns)}, dtype),
              .xa = half.adapters.empty() ? Tensor{} : scratch.take({most, half.rank_columns()}, dtype),
              .dropout = {experts_.dropout.scalars, part.sample_ids, part.positions}};
  moe_permutation(context_, {.ids = part.ids, .rows = to.rows});
  moe_gate_up(context_, {.rows = to.rows,
                         .x = part.x,
                         .weight = gate_up_.view,
                         .bias = half.bias_view(),
                         .adapters = half.adapter_views(training_),
                         .dropout = to.dropout,
                         .function = experts_.function,
                         .xa = to.xa,
                         .h = to.h,
                         .activation = to.activation});
  return to;
}

void ExpertsPass::down(const PartRows& rows, const TokenRows& part, const Tensor& out) const {
  const ExpertHalf& half = experts_.down;
  moe_down(context_, {.rows = rows.rows,
                      .activation = rows.activation,
                      .weights = part.weights,
                      .weight = down_.view,
                      .bias = half.bias_view(),
                      .adapters = half.adapter_views(training_),
                      .dropout = rows.dropout,
                      .out = out});
}

void ExpertsPass::differentiate(const PartRows& rows, const TokenRows& part, const GradDest& dx,
                                const GradDest& dweights, PartGradients& gradients) const {
  const ExpertHalf &gate_up = experts_.gate_up, &down = experts_.down;
  // h is not read after this, so its gradient overwrites it.
  moe_down_grad(context_, {.rows = rows.rows,
                           .h = rows.h,
                           .weights = part.weights,
                           .weight = down_.view,
                           .bias = down.bias_view(),
                           .adapters = down.adapter_views(training_),
                           .dropout = rows.dropout,
                           .function = experts_.function,
                           .dout = part.dout,
                           .dh = {rows.h, 0.0f},
                           .dweights = dweights,
                           .dweight = gradients.down_.dest,
                           .dbias = gradients.down_bias_,
                           .dadapters = gradients.down_adapters_});
  moe_gate_up_grad(context_, {.rows = rows.rows,
                              .x = part.x,
                              .weight = gate_up_.view,
                              .adapters = gate_up.adapter_views(training_),
                              .dropout = rows.dropout,
                              .function = experts_.function,
                              .xa = rows.xa,
                              .dh = rows.h,
                              .dx = dx,
                              .dweight = gradients.gate_up_.dest,
                              .dbias = gradients.gate_up_bias_,
                              .dadapters = gradients.gate_up_adapters_});
  gradients.keep();
}

}  // namespace hone
