#include "nn/feed_forward.h"

#include <fmt/format.h>

#include "ops/cast/cast.h"
#include "ops/moe_experts/moe_experts.h"
#include "ops/router/router.h"
#include "ops/swiglu/swiglu.h"

namespace hone {

Mlp::Mlp(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype) {
  const std::string module = config.layer_module(layer) + "mlp.";
  const int64_t hidden = config.hidden_size, inner = config.layers[static_cast<size_t>(layer)].intermediate_size;
  const auto make = [&](const char* name, int64_t out, int64_t in) {
    return Linear(store, module + name, out, in, config.mlp_bias, ParameterKind::kMlp, layer, dtype);
  };
  gate_proj_ = make("gate_proj", inner, hidden);
  up_proj_ = make("up_proj", inner, hidden);
  down_proj_ = make("down_proj", hidden, inner);
}

Var Mlp::operator()(Tape& tape, Var x, const Forward& forward) const {
  return down_proj_(tape, swiglu(tape, gate_proj_(tape, x, forward), up_proj_(tape, x, forward)), forward);
}

void Mlp::collect(std::vector<Parameter*>& group) const {
  for (const Linear* linear : {&gate_proj_, &up_proj_, &down_proj_}) linear->collect(group);
}

namespace {

/// How files may hold the experts of a layer: a tensor per expert and projection, or fused under the module's file
/// name.
struct ExpertLayouts {
  std::vector<FileLayout> gate_up, down;
};

ExpertLayouts expert_layouts(const DecoderConfig& config, int layer) {
  const int64_t experts = config.moe.num_experts, inner = config.moe.moe_intermediate_size, hidden = config.hidden_size;
  const DecoderNames& names = config.names;
  const std::string file = config.layer_module(layer) + names.file_moe + ".experts.";
  ExpertLayouts layouts{{FileLayout{}}, {FileLayout{}}};
  for (int64_t e = 0; e < experts; ++e) {
    const auto name = [&](const std::string& projection) { return fmt::format("{}{}.{}.weight", file, e, projection); };
    const int64_t begin = e * 2 * inner * hidden;
    layouts.gate_up[0].push_back({name(names.gate), {inner, hidden}, begin});
    layouts.gate_up[0].push_back({name(names.up), {inner, hidden}, begin + inner * hidden});
    layouts.down[0].push_back({name(names.down), {hidden, inner}, e * hidden * inner});
  }
  if (names.file_moe != names.moe) {
    layouts.gate_up.push_back({{file + "gate_up_proj", {experts, 2 * inner, hidden}, 0}});
    layouts.down.push_back({{file + "down_proj", {experts, hidden, inner}, 0}});
  }
  return layouts;
}

}  // namespace

MixtureOfExperts::MixtureOfExperts(const DecoderConfig& config, int layer, int64_t moe_index, ParameterStore& store,
                                   DType dtype)
    : top_k_(config.moe.num_experts_per_tok), moe_index_(moe_index), norm_topk_prob_(config.moe.norm_topk_prob) {
  const int64_t experts = config.moe.num_experts, inner = config.moe.moe_intermediate_size, hidden = config.hidden_size;
  const DecoderNames& names = config.names;
  const std::string module = config.layer_module(layer) + names.moe + ".";
  std::vector<FileLayout> router_layouts;
  if (names.file_moe != names.moe) {
    router_layouts.push_back({{config.layer_module(layer) + names.file_moe + ".gate.weight", {experts, hidden}, 0}});
  }
  ExpertLayouts layouts = expert_layouts(config, layer);
  router_ =
      &store.add({module + "gate.weight", {experts, hidden}, ParameterKind::kRouter, layer, router_layouts}, dtype);
  gate_up_ = &store.add({module + "experts.gate_up_proj",
                         {experts, 2 * inner, hidden},
                         ParameterKind::kExpertsGateUp,
                         layer,
                         std::move(layouts.gate_up)},
                        dtype);
  down_ = &store.add({module + "experts.down_proj",
                      {experts, hidden, inner},
                      ParameterKind::kExpertsDown,
                      layer,
                      std::move(layouts.down)},
                     dtype);
}

Var MixtureOfExperts::operator()(Tape& tape, Var x, const Forward& forward) const {
  const auto index = static_cast<size_t>(moe_index_);
  const int64_t experts = router_->shape()[0];
  RouterOptions options;
  options.top_k = top_k_;
  options.normalise = norm_topk_prob_;
  if (forward.routing != nullptr) {
    const RoutingMeasurements& measured = forward.routing->measurements;
    options.statistics = {.counts = measured.counts.rows(moe_index_, 1).reshaped({experts}),
                          .prob_sum = measured.prob_sum.rows(moe_index_, 1).reshaped({experts}),
                          .entropy = measured.entropy.rows(moe_index_, 1)};
    options.aux = {.fractions = forward.routing->fractions,
                   .num_layers = measured.counts.shape[0],
                   .scalars = forward.step.scalars};
  }
  if (!forward.forced_expert_ids.empty()) options.forced_ids = forward.forced_expert_ids[index];
  const RoutedTokens routed = router(tape, x, *router_, options);
  if (!forward.recorded_expert_ids.empty()) {
    copy(tape.context(), tape.data(routed.ids), forward.recorded_expert_ids[index]);
  }
  ExpertAdapters adapters;
  for (const AttachedAdapter& a : gate_up_->adapters())
    adapters.gate_up.push_back({a.adapter, a.out_begin, a.out_count});
  for (const AttachedAdapter& a : down_->adapters()) adapters.down.push_back({a.adapter, a.out_begin, a.out_count});
  return moe_experts(tape, x, routed, {.gate_up = gate_up_, .down = down_}, adapters, forward.dropout_context());
}

void MixtureOfExperts::collect(std::vector<Parameter*>& group) const {
  for (Parameter* parameter : {router_, gate_up_, down_}) group.push_back(parameter);
}

}  // namespace hone
