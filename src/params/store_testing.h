// A small model's parameters for the tests of this room and of the rooms above: dense and expert weights, named as
// Mixtral files name them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/base/philox.h"
#include "core/base/testing_names.h"
#include "params/adapter.h"
#include "params/parameter_store.h"
#include "params/placement.h"

namespace hone::testing {

struct StoreSizes {
  int64_t experts = 3, hidden = 4, intermediate = 5, vocab = 7;
  DType dtype = DType::kF32;
  bool separate_files = true;  ///< whether each expert has its own; false: one tensor of a layer's
  bool router_bias = false;
  bool gated = true;  ///< experts have gate and up; else up alone
};

/// Files hold one tensor for each expert and projection: w1 is gate, w3 up, w2 down; or input_linear, output_linear.
inline void add_experts(ParameterStore& store, const StoreSizes& s, int layer) {
  const std::string own = fmt::format("model.layers.{}.mlp.experts.", layer);
  const int64_t parts = s.gated ? 2 : 1;
  FileLayout gate_up, down;
  for (int64_t e = 0; e < s.experts; ++e) {
    const std::string file = fmt::format("model.layers.{}.block_sparse_moe.experts.{}.", layer, e);
    const int64_t part = s.intermediate * s.hidden;
    if (s.gated) gate_up.push_back({file + "w1.weight", {s.intermediate, s.hidden}, parts * e * part});
    gate_up.push_back({file + "w3.weight", {s.intermediate, s.hidden}, (parts * e + parts - 1) * part});
    down.push_back({file + "w2.weight", {s.hidden, s.intermediate}, e * part});
  }
  if (!s.separate_files) {
    const std::string file = fmt::format("model.layers.{}.block_sparse_moe.", layer);
    gate_up = {{file + "input_linear.weight", {s.experts, parts * s.intermediate, s.hidden}, 0}};
    down = {{file + "output_linear.weight", {s.experts, s.hidden, s.intermediate}, 0}};
  }
  store.add({own + (s.gated ? "gate_up_proj" : "up_proj"),
             {s.experts, parts * s.intermediate, s.hidden},
             s.gated ? ParameterKind::kExpertsGateUp : ParameterKind::kExpertsUp,
             layer,
             {gate_up}},
            s.dtype);
  store.add({own + "down_proj", {s.experts, s.hidden, s.intermediate}, ParameterKind::kExpertsDown, layer, {down}},
            s.dtype);
}

/// One layer with attention, a dense MLP weight, a router and experts, between an embedding and a head.
inline void add_model(ParameterStore& store, const StoreSizes& s) {
  const std::string layer = "model.layers.0.";
  store.add({"model.embed_tokens.weight", {s.vocab, s.hidden}, ParameterKind::kEmbedding, -1, {}}, s.dtype);
  store.add({layer + "self_attn.q_proj.weight", {6, s.hidden}, ParameterKind::kAttention, 0, {}}, s.dtype);
  store.add({layer + "self_attn.o_proj.weight", {s.hidden, 6}, ParameterKind::kAttention, 0, {}}, s.dtype);
  store.add({layer + "mlp.shared.up_proj.weight", {5, s.hidden}, ParameterKind::kMlp, 0, {}}, s.dtype);
  store.add({layer + "mlp.gate.weight",
             {s.experts, s.hidden},
             ParameterKind::kRouter,
             0,
             {{{layer + "block_sparse_moe.gate.weight", {s.experts, s.hidden}, 0}}}},
            s.dtype);
  if (s.router_bias) store.add({layer + "mlp.gate.bias", {s.experts}, ParameterKind::kRouter, 0, {}}, s.dtype);
  add_experts(store, s, 0);
  store.add({"model.norm.weight", {s.hidden}, ParameterKind::kNorm, -1, {}}, s.dtype);
}

/// The groups of a model with these parameters: the embedding, two halves of each layer, the rest.
inline void add_groups(ParameterStore& store, Placement& placement) {
  int layers = 0;
  for (const Parameter& p : store.all()) layers = std::max(layers, p.spec().layer + 1);
  const auto group = [&](ParameterGroup::Place place, auto belongs) {
    std::vector<Parameter*> members;
    for (Parameter& p : store.all()) {
      if (p.spec().layer == place.layer && belongs(p.spec().kind)) members.push_back(&p);
    }
    placement.group(std::move(place), members);
  };
  const auto in_feed_forward = [](ParameterKind kind) {
    return kind == ParameterKind::kMlp || kind == ParameterKind::kRouter || kind == ParameterKind::kExpertsGateUp ||
           kind == ParameterKind::kExpertsUp || kind == ParameterKind::kExpertsDown;
  };
  group({"embedding"}, [](ParameterKind kind) { return kind == ParameterKind::kEmbedding; });
  for (int i = 0; i < layers; ++i) {
    group({fmt::format("layer {}", i), i, LayerHalf::kMixer}, std::not_fn(in_feed_forward));
    group({fmt::format("layer {} feed-forward", i), i, LayerHalf::kFeedForward}, in_feed_forward);
  }
  group({"head"}, [](ParameterKind kind) { return kind != ParameterKind::kEmbedding; });
}

/// Every parameter's values, from its name.
inline void fill(ParameterStore& store, uint64_t seed) {
  for (Parameter& parameter : store.all()) {
    uint64_t key = seed;
    for (char c : parameter.name()) key = mix_key(key, static_cast<uint8_t>(c));
    PhiloxSequence random(key);
    std::vector<float> values(static_cast<size_t>(parameter.shape().numel()));
    for (float& value : values) value = random.normal();
    write_values(parameter, 0, values.data(), parameter.shape().numel());
  }
}

inline std::vector<std::byte> bytes_of(const Tensor& tensor) { return {tensor.data, tensor.data + tensor.bytes()}; }

/// Merges the adapters; returns the base weights, which are float32.
inline std::vector<float> merged(ParameterStore& store) {
  merge_adapters(store);
  std::vector<float> values;
  for (const Parameter& p : store.all()) {
    if (p.spec().kind == ParameterKind::kLora) continue;
    values.insert(values.end(), p.value().whole().as<float>(), p.value().whole().as<float>() + p.shape().numel());
  }
  return values;
}

/// The message of the UserError that `f` must throw; "" and a failure otherwise.
template <class F>
std::string user_error(F&& f) {
  try {
    f();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace hone::testing
