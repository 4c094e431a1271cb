#include "nn/mamba2.h"

#include <fmt/format.h>

#include "ops/causal_conv/causal_conv.h"
#include "ops/gated_group_norm/gated_group_norm.h"
#include "ops/split_heads/split_heads.h"

namespace hone {

Mamba2::Mamba2(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype)
    : heads_(config.mamba.heads), rms_norm_eps_(static_cast<float>(config.rms_norm_eps)), layer_(layer), dtype_(dtype) {
  const std::string module = config.layer_module(layer) + config.names.mamba + ".";
  const int64_t hidden = config.hidden_size, count = heads_.num_heads;
  const bool bias = config.mamba.proj_bias;
  in_proj_ = Linear(store, module + "in_proj", heads_.inner() + heads_.width() + count, hidden, bias,
                    ParameterKind::kAttention, layer, dtype);
  out_proj_ = Linear(store, module + "out_proj", hidden, heads_.inner(), bias, ParameterKind::kAttention, layer, dtype);
  const auto add = [&](const char* name, Shape shape, InitialValues initial) {
    return &store.add({module + name, shape, ParameterKind::kRecurrence, layer, {}, FileOrder::kSame, initial}, dtype);
  };
  conv_ = add("conv1d.weight", {heads_.width(), 1, config.mamba.conv_taps}, InitialValues::kNormal);
  if (config.mamba.conv_bias) conv_bias_ = add("conv1d.bias", {heads_.width()}, InitialValues::kZeros);
  dt_bias_ = add("dt_bias", {count}, InitialValues::kOnes);
  a_log_ = add("A_log", {count}, InitialValues::kLogOfUniform);
  d_ = add("D", {count}, InitialValues::kOnes);
  norm_ = &store.add({module + "norm.weight",
                      {heads_.inner()},
                      ParameterKind::kNorm,
                      layer,
                      {},
                      FileOrder::kSame,
                      InitialValues::kOnes},
                     dtype);
}

Var Mamba2::operator()(Tape& tape, Var x, const Forward& forward, const RopeTables&) const {
  const std::vector<Var> in =
      split_heads(tape, in_proj_(tape, x, forward),
                  {.heads = 1, .list = {{heads_.inner(), 0}, {heads_.width(), 1}, {heads_.num_heads, 2}}});
  const PackedSequences sequences = forward.batch->sequences();
  ConvState inputs;
  SsdState states;
  if (forward.cache != nullptr) {
    const std::vector<Tensor>& kept = forward.cache->layers[static_cast<size_t>(layer_)];
    inputs = {.inputs = kept[0], .lengths = forward.cache->lengths};
    states = {.s = kept[1], .lengths = forward.cache->lengths};
  }
  const Var xbc = causal_conv(tape, in[1], *conv_, conv_bias_, sequences, inputs);
  const Var read = ssd_scan(tape, {xbc, in[2], a_log_, dt_bias_, d_}, heads_, sequences, states);
  return out_proj_(tape, gated_group_norm(tape, read, in[0], *norm_, heads_.num_groups, rms_norm_eps_), forward);
}

double Mamba2::flops(const ForwardWork& work) const {
  // A head's state is updated, and multiplied by C.
  const int64_t recurrence = 2 * heads_.inner() * heads_.state_size;
  return 2 * work.tokens * static_cast<double>(recurrence + conv_->shape().numel()) + in_proj_.flops(work.tokens) +
         out_proj_.flops(work.tokens);
}

ModuleSummary Mamba2::summary() const {
  return {"state space", fmt::format("{} heads of {}, state {}", heads_.num_heads, heads_.head_dim, heads_.state_size)};
}

void Mamba2::collect(std::vector<Parameter*>& group) const {
  for (const Linear* linear : {&in_proj_, &out_proj_}) linear->collect(group);
  for (Parameter* parameter : {conv_, conv_bias_, a_log_, dt_bias_, d_, norm_}) {
    if (parameter) group.push_back(parameter);
  }
}

std::vector<CacheTensor> Mamba2::cache() const {
  return {{{conv_->shape()[2] - 1, heads_.width()}, dtype_},
          {{heads_.num_heads, heads_.state_size, heads_.head_dim}, DType::kF32}};
}

}  // namespace hone
