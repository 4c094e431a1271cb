// Granite 4 (granite-4.0-h-small, h-tiny, h-micro, h-1b, h-350m; without h those with attention alone): Granite's
// multipliers, experts and shared MLP behind mixers that are Mamba-2 or attention, mostly without RoPE. Without routed
// experts the shared MLP is the layer's only one.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/text/json.h"
#include "models/granitemoe.h"
#include "models/registry.h"
#include "ops/causal_conv/causal_conv.h"
#include "ops/gated_group_norm/gated_group_norm.h"

namespace hone {

namespace {

/// Reads the mixers from `layer_types` or `layers_block_type`; without both every layer is Mamba-2.
void read_mixers(const HfConfig& config, DecoderConfig& decoder) {
  constexpr const char *kTypes = "layer_types", *kTypesToo = "layers_block_type";
  if (config.has(kTypes) && config.has(kTypesToo) && config.json().at(kTypes) != config.json().at(kTypesToo)) {
    config.refuse(fmt::format("{} and {}, another name of this field, have different values", kTypes, kTypesToo));
  }
  const char* key = config.has(kTypesToo) ? kTypesToo : kTypes;
  const Json types = config.has(key) ? config.json().at(key) : Json();
  if (!types.is_null() && (!types.is_array() || types.size() != decoder.layers.size())) {
    config.refuse(fmt::format("{} does not list every layer", key));
  }
  for (size_t i = 0; i < decoder.layers.size(); ++i) {
    const Json type = types.is_null() ? Json("mamba") : types[i];
    const bool attention = type == "attention" || type == "full_attention";
    if (!attention && type != "mamba" && type != "linear_attention") {
      config.refuse(fmt::format("{}: {} is not supported", key, type.dump()));
    }
    decoder.layers[i].mixer = attention ? MixerKind::kAttention : MixerKind::kMamba2;
  }
}

/// A bound of time_step_limit: transformers 5 writes infinity as an object.
float read_bound(const HfConfig& config, const Json& bound) {
  if (bound.is_object() && bound.size() == 1 && bound.contains("__float__") && bound["__float__"] == "Infinity") {
    return std::numeric_limits<float>::infinity();
  }
  if (!bound.is_number()) config.refuse(fmt::format("time_step_limit: {} is not a number", bound.dump()));
  return bound.get<float>();
}

/// The sizes of Mamba-2's layers; nothing for a model without them, whose file has the fields, too.
Mamba2Config read_mamba(const HfConfig& config, const DecoderConfig& decoder) {
  const auto size = [&](const char* key, int64_t fallback) {
    const int64_t value = config.integer_or(key, fallback);
    if (value == 0 || value > (1 << 20)) config.refuse(fmt::format("{}: {} is out of range", key, value));
    return value;
  };
  Mamba2Config mamba;
  SsdHeads& heads = mamba.heads;
  const int64_t inner = size("mamba_expand", 2) * decoder.hidden_size;
  heads.num_heads = size("mamba_n_heads", 128);
  const bool divided = !config.has("mamba_d_head") || config.json().at("mamba_d_head") == "auto";
  heads.head_dim = divided ? inner / heads.num_heads : size("mamba_d_head", 0);
  heads.num_groups = size("mamba_n_groups", 1);
  heads.state_size = size("mamba_d_state", 256);
  mamba.conv_taps = size("mamba_d_conv", 4);
  mamba.conv_bias = config.boolean_or("mamba_conv_bias", true);
  mamba.proj_bias = config.boolean_or("mamba_proj_bias", false);
  if (config.has("time_step_limit")) {
    const Json& limit = config.json().at("time_step_limit");
    if (!limit.is_array() || limit.size() != 2) config.refuse("time_step_limit is not a pair of numbers");
    heads.min_step = read_bound(config, limit[0]);
    heads.max_step = read_bound(config, limit[1]);
    if (!(heads.min_step >= 0 && heads.min_step <= heads.max_step)) {
      config.refuse(fmt::format("time_step_limit: {} is not two increasing numbers from 0 on", limit.dump()));
    }
  }
  const auto is_mamba = [](const LayerConfig& layer) { return layer.mixer == MixerKind::kMamba2; };
  if (std::none_of(decoder.layers.begin(), decoder.layers.end(), is_mamba)) return {};
  if (heads.inner() != inner) {
    config.refuse(fmt::format("mamba_n_heads, mamba_d_head: {} heads of {} are not mamba_expand times hidden_size, {}",
                              heads.num_heads, heads.head_dim, inner));
  }
  if (heads.num_heads % heads.num_groups != 0) {
    config.refuse(fmt::format("mamba_n_groups: {} heads cannot share {} groups", heads.num_heads, heads.num_groups));
  }
  if (inner / heads.num_groups > kMaxGatedGroup) {
    config.refuse(fmt::format("mamba_n_groups: groups of {} are not supported (at most {})", inner / heads.num_groups,
                              kMaxGatedGroup));
  }
  if (heads.head_dim > kMaxSsdHeadDim || heads.state_size > kMaxSsdState || mamba.conv_taps > kMaxConvTaps) {
    config.refuse(
        fmt::format("mamba_d_head, mamba_d_state, mamba_d_conv: {}, {}, {} are not supported (at most {}, {}, {})",
                    heads.head_dim, heads.state_size, mamba.conv_taps, kMaxSsdHeadDim, kMaxSsdState, kMaxConvTaps));
  }
  return mamba;
}

}  // namespace

DecoderConfig read_granitemoehybrid(const HfConfig& config) {
  const ClassDefaults defaults;
  DecoderConfig decoder = config.read_decoder(defaults);
  read_granite(config, decoder);
  decoder.names.mlp = "shared_mlp";
  decoder.names.mlp_fused = true;
  config.require("normalization_function", "rmsnorm");
  const std::string positions = config.string_or("position_embedding_type", "nope");
  if (positions != "rope" && positions != "nope") {
    config.refuse(fmt::format("position_embedding_type: '{}' is not supported (only rope and nope)", positions));
  }
  decoder.rotates = positions == "rope";
  read_mixers(config, decoder);
  decoder.mamba = read_mamba(config, decoder);
  const int64_t shared = config.integer("shared_intermediate_size");
  const bool sparse = config.integer_or("num_local_experts", 1) > 0;  // read_moe() refuses a file without it
  if (sparse) {
    decoder.moe = config.read_moe("intermediate_size", defaults);
    decoder.moe.shared_expert_intermediate_size = shared;
  }
  for (LayerConfig& layer : decoder.layers) {
    layer.moe = sparse;
    layer.intermediate_size = sparse ? 0 : shared;
  }
  return decoder;
}

}  // namespace hone
