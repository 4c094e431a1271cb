// Granite 4 (granite-4.0-h-small, h-tiny, h-micro, h-1b, h-350m; without h those with attention alone): Granite's
// multipliers, experts and shared MLP behind mixers that are Mamba-2 or attention, mostly without RoPE. Without routed
// experts the shared MLP is the layer's only one.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "core/text/json.h"
#include "models/granitemoe.h"
#include "models/mamba.h"
#include "models/registry.h"

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

constexpr MambaKeys kGraniteKeys{.heads = "mamba_n_heads",
                                 .head_dim = "mamba_d_head",
                                 .groups = "mamba_n_groups",
                                 .state_size = "mamba_d_state",
                                 .conv_taps = "mamba_d_conv"};

/// The sizes of Mamba-2's layers; nothing for a model without them, whose file has the fields, too.
Mamba2Config read_mamba(const HfConfig& config, const DecoderConfig& decoder) {
  Mamba2Config mamba;
  SsdHeads& heads = mamba.heads;
  const int64_t inner = read_mamba_size(config, "mamba_expand", 2) * decoder.hidden_size;
  heads.num_heads = read_mamba_size(config, kGraniteKeys.heads, 128);
  const bool divided = !config.has(kGraniteKeys.head_dim) || config.json().at(kGraniteKeys.head_dim) == "auto";
  heads.head_dim = divided ? inner / heads.num_heads : read_mamba_size(config, kGraniteKeys.head_dim, 0);
  heads.num_groups = read_mamba_size(config, kGraniteKeys.groups, 1);
  heads.state_size = read_mamba_size(config, kGraniteKeys.state_size, 256);
  mamba.conv_taps = read_mamba_size(config, kGraniteKeys.conv_taps, 4);
  mamba.conv_bias = config.boolean_or("mamba_conv_bias", true);
  mamba.proj_bias = config.boolean_or("mamba_proj_bias", false);
  std::tie(heads.min_step, heads.max_step) = read_time_step_limit(config);
  const auto is_mamba = [](const LayerConfig& layer) { return layer.mixer == MixerKind::kMamba2; };
  if (std::none_of(decoder.layers.begin(), decoder.layers.end(), is_mamba)) return {};
  if (heads.inner() != inner) {
    config.refuse(fmt::format("mamba_n_heads, mamba_d_head: {} heads of {} are not mamba_expand times hidden_size, {}",
                              heads.num_heads, heads.head_dim, inner));
  }
  check_mamba(config, kGraniteKeys, mamba);
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
