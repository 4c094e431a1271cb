#include "nn/gated_delta_net.h"

#include <fmt/format.h>

#include "ops/causal_conv/causal_conv.h"
#include "ops/gated_rms_norm/gated_rms_norm.h"
#include "ops/split_heads/split_heads.h"

namespace hone {

GatedDeltaNet::GatedDeltaNet(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype)
    : heads_(config.delta_net.heads),
      fused_projections_(config.delta_net.fused_projections),
      rms_norm_eps_(static_cast<float>(config.rms_norm_eps)),
      layer_(layer),
      dtype_(dtype) {
  const std::string module = config.layer_module(layer) + "linear_attn.";
  const int64_t hidden = config.hidden_size, value_heads = heads_.num_value_heads;
  const int64_t value_width = value_heads * heads_.value_dim;
  const auto linear = [&](const char* name, int64_t out, int64_t in, ParameterKind kind) {
    return Linear(store, module + name, out, in, false, kind, layer, dtype);
  };
  if (fused_projections_) {
    in_proj_qkvz_ = linear("in_proj_qkvz", heads_.width() + value_width, hidden, ParameterKind::kAttention);
    in_proj_ba_ = linear("in_proj_ba", 2 * value_heads, hidden, ParameterKind::kAttentionGate);
  } else {
    in_proj_qkv_ = linear("in_proj_qkv", heads_.width(), hidden, ParameterKind::kAttention);
    in_proj_z_ = linear("in_proj_z", value_width, hidden, ParameterKind::kAttentionGate);
    in_proj_b_ = linear("in_proj_b", value_heads, hidden, ParameterKind::kAttentionGate);
    in_proj_a_ = linear("in_proj_a", value_heads, hidden, ParameterKind::kAttentionGate);
  }
  out_proj_ = linear("out_proj", hidden, value_width, ParameterKind::kAttention);
  const auto add = [&](const char* name, Shape shape, ParameterKind kind, InitialValues initial) {
    return &store.add({module + name, shape, kind, layer, {}, FileOrder::kSame, initial}, dtype);
  };
  const auto recurrence = ParameterKind::kRecurrence;
  conv_ = add("conv1d.weight", {heads_.width(), 1, config.delta_net.conv_taps}, recurrence, InitialValues::kNormal);
  dt_bias_ = add("dt_bias", {value_heads}, recurrence, InitialValues::kOnes);
  a_log_ = add("A_log", {value_heads}, recurrence, InitialValues::kLogOfUniform);
  norm_ = add("norm.weight", {heads_.value_dim}, ParameterKind::kNorm, InitialValues::kOnes);
}

GatedDeltaNet::Projected GatedDeltaNet::project(Tape& tape, Var x, const Forward& forward) const {
  if (!fused_projections_) {
    return {in_proj_qkv_(tape, x, forward), in_proj_z_(tape, x, forward), in_proj_a_(tape, x, forward),
            in_proj_b_(tape, x, forward)};
  }
  // For each key head: its query and key, then the values and gates z of its value heads. Likewise b, then a.
  const int64_t values = heads_.group() * heads_.value_dim;
  const std::vector<Var> wide = split_heads(
      tape, in_proj_qkvz_(tape, x, forward),
      {.heads = heads_.num_key_heads, .list = {{heads_.key_dim, 0}, {heads_.key_dim, 0}, {values, 0}, {values, 1}}});
  const std::vector<Var> gates =
      split_heads(tape, in_proj_ba_(tape, x, forward),
                  {.heads = heads_.num_key_heads, .list = {{heads_.group(), 0}, {heads_.group(), 1}}});
  return {wide[0], wide[1], gates[1], gates[0]};
}

Var GatedDeltaNet::operator()(Tape& tape, Var x, const Forward& forward, const RopeTables&) const {
  const Projected in = project(tape, x, forward);
  const PackedSequences sequences = forward.batch->sequences();
  ConvState inputs;
  DeltaState states;
  if (forward.cache != nullptr) {
    const std::vector<Tensor>& kept = forward.cache->layers[static_cast<size_t>(layer_)];
    inputs = {.inputs = kept[0], .lengths = forward.cache->lengths};
    states = {.s = kept[1], .lengths = forward.cache->lengths};
  }
  const Var qkv = causal_conv(tape, in.qkv, *conv_, nullptr, sequences, inputs);
  const Var read = gated_delta_rule(tape, {qkv, in.a, in.b, a_log_, dt_bias_}, heads_, sequences, states);
  return out_proj_(tape, gated_rms_norm(tape, read, in.z, *norm_, rms_norm_eps_), forward);
}

double GatedDeltaNet::flops(const ForwardWork& work) const {
  // A head's state is multiplied by the key, updated, and multiplied by the query.
  const int64_t recurrence = 3 * heads_.num_value_heads * heads_.value_dim * heads_.key_dim;
  double flops = 2 * work.tokens * static_cast<double>(recurrence + conv_->shape().numel());
  for (const Linear* linear : projections()) flops += linear->flops(work.tokens);
  return flops;
}

ModuleSummary GatedDeltaNet::summary() const {
  return {"linear attention", fmt::format("{} key heads of {}, {} value heads of {}", heads_.num_key_heads,
                                          heads_.key_dim, heads_.num_value_heads, heads_.value_dim)};
}

std::vector<const Linear*> GatedDeltaNet::projections() const {
  if (fused_projections_) return {&in_proj_qkvz_, &in_proj_ba_, &out_proj_};
  return {&in_proj_qkv_, &in_proj_z_, &in_proj_b_, &in_proj_a_, &out_proj_};
}

void GatedDeltaNet::collect(std::vector<Parameter*>& group) const {
  for (const Linear* linear : projections()) linear->collect(group);
  for (Parameter* parameter : {conv_, a_log_, dt_bias_, norm_}) group.push_back(parameter);
}

std::vector<CacheTensor> GatedDeltaNet::cache() const {
  return {{{conv_->shape()[2] - 1, heads_.width()}, dtype_},
          {{heads_.num_value_heads, heads_.key_dim, heads_.value_dim}, DType::kF32}};
}

}  // namespace hone
