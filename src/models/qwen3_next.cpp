// Qwen3-Next (Qwen3-Next-80B-A3B): the projections of linear attention are fused, grouped by key head.
#include "models/qwen3_next.h"

#include <fmt/format.h>

#include "core/text/json.h"
#include "models/registry.h"
#include "ops/causal_conv/causal_conv.h"

namespace hone {

namespace {

/// Reads which layers have linear or full attention from `layer_types`; if that is absent, every
/// full_attention_interval-th layer has full attention.
void read_layer_kinds(const HfConfig& config, DecoderConfig& decoder) {
  const int64_t interval = config.integer_or("full_attention_interval", 4);
  if (interval == 0) config.refuse("full_attention_interval: 0 is out of range");
  const auto count = static_cast<int64_t>(decoder.layers.size());
  const Json types = config.has("layer_types") ? config.json().at("layer_types") : Json();
  if (!types.is_null() && (!types.is_array() || static_cast<int64_t>(types.size()) != count)) {
    config.refuse("layer_types does not list every layer");
  }
  for (int64_t i = 0; i < count; ++i) {
    bool full = (i + 1) % interval == 0;
    if (!types.is_null()) {
      const Json& type = types[static_cast<size_t>(i)];
      if (type != "full_attention" && type != "linear_attention") {
        config.refuse(fmt::format("layer_types: {} is not supported", type.dump()));
      }
      full = type == "full_attention";
    }
    decoder.layers[static_cast<size_t>(i)].mixer = full ? MixerKind::kAttention : MixerKind::kGatedDeltaNet;
  }
}

void read_delta_net(const HfConfig& config, DeltaNetConfig& delta) {
  const auto size = [&](const char* key, int64_t fallback) {
    const int64_t value = config.integer_or(key, fallback);
    if (value == 0) config.refuse(fmt::format("{}: 0 is out of range", key));
    return value;
  };
  delta.heads = {.num_key_heads = size("linear_num_key_heads", 16),
                 .num_value_heads = size("linear_num_value_heads", 32),
                 .key_dim = size("linear_key_head_dim", 128),
                 .value_dim = size("linear_value_head_dim", 128)};
  delta.conv_taps = size("linear_conv_kernel_dim", 4);
  if (delta.heads.num_value_heads % delta.heads.num_key_heads != 0) {
    config.refuse(fmt::format("linear_num_value_heads: {} value heads cannot share {} key heads",
                              delta.heads.num_value_heads, delta.heads.num_key_heads));
  }
  constexpr int64_t kMaxKeyDim = 256, kMaxValueDim = 1024;
  if (delta.heads.key_dim > kMaxKeyDim || delta.heads.value_dim > kMaxValueDim || delta.conv_taps > kMaxConvTaps) {
    config.refuse(fmt::format(
        "linear_key_head_dim, linear_value_head_dim, linear_conv_kernel_dim: {}, {}, {} are not supported (at most {}, "
        "{}, {})",
        delta.heads.key_dim, delta.heads.value_dim, delta.conv_taps, kMaxKeyDim, kMaxValueDim, kMaxConvTaps));
  }
}

}  // namespace

DecoderConfig read_gated_hybrid(const HfConfig& config) {
  const ClassDefaults defaults = {
      .num_key_value_heads = 2, .head_dim = 256, .max_position_embeddings = 32768, .partial_rotary_factor = 0.25};
  DecoderConfig decoder = config.read_decoder(defaults);
  decoder.qk_norm = true;
  decoder.norm_weighting = NormWeighting::kFromOne;
  decoder.attention_output_gate = true;
  config.require("attn_output_gate", true);
  config.require("mamba_ssm_dtype", "float32");
  decoder.qkv_bias = decoder.o_bias = config.boolean_or("attention_bias", false);
  read_layer_kinds(config, decoder);
  read_delta_net(config, decoder.delta_net);
  decoder.moe = config.read_moe("moe_intermediate_size", defaults);
  decoder.moe.shared_expert_intermediate_size = config.integer("shared_expert_intermediate_size");
  decoder.moe.shared_expert_gate = true;
  return decoder;
}

DecoderConfig read_qwen3_next(const HfConfig& config) {
  DecoderConfig decoder = read_gated_hybrid(config);
  decoder.delta_net.fused_projections = true;
  decoder.moe.router.normalise = config.boolean_or("norm_topk_prob", true);
  config.read_sparse_layers(decoder);
  return decoder;
}

}  // namespace hone
