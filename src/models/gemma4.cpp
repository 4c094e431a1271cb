// Gemma 4 (gemma-4-26B-A4B, gemma-4-31B): windows in five of six layers; layers without have wider heads, RoPE on a
// quarter of their pairs, and keys that are the values, too. Norms before and after each half. With experts a layer has
// them beside its MLP. Alone or inside a checkpoint with images and sound, whose towers are kept unchanged; a token of
// text attends to none after it. Models with embeddings for each layer or shared keys (E2B, E4B) are refused.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <map>

#include "core/text/json.h"
#include "models/registry.h"

namespace hone {

namespace {

void refuse_other_kinds(const HfConfig& config) {
  constexpr const char *kPerLayer = "hidden_size_per_layer_input", *kShared = "num_kv_shared_layers";
  const int64_t width = config.is_null(kPerLayer) ? 0 : config.integer_or(kPerLayer, 256);
  if (width != 0) {
    config.refuse(
        fmt::format("{}: {} is not supported (only 0): models with embeddings for each layer, such as E2B "
                    "and E4B, are not trained",
                    kPerLayer, width));
  }
  if (const int64_t layers = config.integer_or(kShared, 0); layers != 0) {
    config.refuse(fmt::format("{}: {} is not supported (only 0): layers that use another layer's keys are not trained",
                              kShared, layers));
  }
  if (config.string_or("use_bidirectional_attention", "vision") != "vision") {
    config.refuse("use_bidirectional_attention: a text model that attends to later tokens is not supported");
  }
}

/// Reads which layers have a window; the last one has none, whatever `layer_types` says.
void read_windows(const HfConfig& config, DecoderConfig& decoder) {
  const int64_t window = config.sliding_window_or(512), last = static_cast<int64_t>(decoder.layers.size()) - 1;
  for (int64_t i = 0; i <= last; ++i) {
    const bool slides = config.layer_uses_window(i, (i + 1) % 6 != 0) && i < last;
    if (slides && window == 0) config.refuse("sliding_window is not set, but layers have sliding attention");
    decoder.layers[static_cast<size_t>(i)].sliding_window = slides ? window : 0;
  }
}

/// The keys of an object with an entry for some layers, by number: transformers fills them up with zeros ("05").
std::map<size_t, std::string> keys_of_layers(const HfConfig& config, const char* name, size_t layers) {
  std::map<size_t, std::string> keys;
  if (!config.has(name)) return keys;
  const HfConfig table = config.nested(name);
  for (const auto& [key, value] : table.json().items()) {
    size_t layer = layers;
    const char* const end = key.data() + key.size();
    const auto parsed = std::from_chars(key.data(), end, layer);
    if (parsed.ec != std::errc() || parsed.ptr != end || layer >= layers || !keys.emplace(layer, key).second) {
      config.refuse(fmt::format("{}: \"{}\" is not the number of a layer, or one that is there already", name, key));
    }
  }
  return keys;
}

/// Reads the sizes of heads that differ between layers, from per_layer_config (transformers from 5.24 on) or from the
/// fields of layers without a window.
void read_head_sizes(const HfConfig& config, bool keys_are_values, DecoderConfig& decoder) {
  constexpr const char *kTable = "per_layer_config", *kDim = "head_dim", *kHeads = "num_key_value_heads";
  const std::map<size_t, std::string> keys = keys_of_layers(config, kTable, decoder.layers.size());
  const int64_t global_dim = config.integer_or("global_head_dim", 512);
  const int64_t global_heads = config.integer_or("num_global_key_value_heads", decoder.num_key_value_heads);
  for (size_t i = 0; i < decoder.layers.size(); ++i) {
    LayerConfig& layer = decoder.layers[i];
    const bool global = layer.sliding_window == 0;
    layer.values_are_keys = keys_are_values && global;
    layer.head_dim = global ? global_dim : decoder.head_dim;
    layer.num_key_value_heads = global && keys_are_values ? global_heads : decoder.num_key_value_heads;
    if (config.has(kTable)) {
      layer.head_dim = decoder.head_dim;
      layer.num_key_value_heads = decoder.num_key_value_heads;
      if (const auto own_key = keys.find(i); own_key != keys.end()) {
        const HfConfig own = config.nested(kTable).nested(own_key->second);
        layer.head_dim = own.integer_or(kDim, layer.head_dim);
        layer.num_key_value_heads = own.integer_or(kHeads, layer.num_key_value_heads);
        for (const auto& [key, value] : own.json().items()) {
          if (key != kDim && key != kHeads) own.refuse(fmt::format("{} of one layer is not supported", key));
        }
      }
    }
    const int64_t heads = decoder.num_attention_heads, kv_heads = layer.num_key_value_heads;
    if (kv_heads == 0 || heads % kv_heads != 0) {
      config.refuse(fmt::format("{} attention heads cannot share {} key-value heads in layer {}", heads, kv_heads, i));
    }
    if (layer.head_dim == 0 || layer.head_dim % 2 != 0) {
      config.refuse(fmt::format("head_dim: {} in layer {} is not a positive even number", layer.head_dim, i));
    }
  }
}

/// Reads RoPE, whose frequencies depend on the size of heads: one for the layers with a window, one for the others.
void read_rope(const HfConfig& config, DecoderConfig& decoder) {
  const auto head_dim_of = [&](bool slides) {
    int64_t dim = 0;
    for (const LayerConfig& layer : decoder.layers) {
      if ((layer.sliding_window > 0) != slides) continue;
      if (dim > 0 && layer.head_dim != dim) {
        config.refuse("head_dim differs between layers of the same type, which share their RoPE",
                      "layer_types and per_layer_config must agree");
      }
      dim = layer.head_dim;
    }
    return dim;
  };
  constexpr int64_t kPositions = 131072;
  decoder.rope = config.rope_of_layer_type("full_attention", head_dim_of(false),
                                           {.max_position_embeddings = kPositions,
                                            .rope_theta = 1000000.0,
                                            .rope_scaling = {.type = RopeType::kProportional, .proportion = 0.25}});
  constexpr const char* kSliding = "sliding_attention";
  if (const int64_t dim = head_dim_of(true); dim > 0) {
    decoder.window_rope = config.rope_of_layer_type(kSliding, dim, {.max_position_embeddings = kPositions});
  } else if (config.has("rope_parameters")) {
    config.nested("rope_parameters").has(kSliding);  // no layer has it
  }
}

DecoderConfig read_text(const HfConfig& config) {
  const ClassDefaults defaults = {.num_key_value_heads = 4,
                                  .head_dim = 256,
                                  .max_position_embeddings = 131072,
                                  .pad_token_id = 0,
                                  .router_aux_loss_coef = 0,
                                  .rope_by_layer_type = true};
  DecoderConfig decoder = config.read_decoder(defaults);
  refuse_other_kinds(config);
  decoder.tie_word_embeddings = config.boolean_or("tie_word_embeddings", true);
  config.require("hidden_activation", "gelu_pytorch_tanh");
  decoder.activation.kind = MlpActivation::Kind::kGeglu;
  decoder.attention_scale = 1;
  decoder.qkv_bias = decoder.o_bias = config.boolean_or("attention_bias", false);
  decoder.qk_norm = decoder.value_norm = true;
  decoder.norm_weighting = NormWeighting::kOnce;
  decoder.layer_scalar = decoder.scaled_embedding = true;
  decoder.embedding_multiplier = std::sqrt(static_cast<double>(decoder.hidden_size));
  decoder.logits_soft_cap = config.number_or("final_logit_softcapping", 0);
  if (decoder.logits_soft_cap < 0) config.refuse("final_logit_softcapping is negative");
  read_windows(config, decoder);
  read_head_sizes(config, config.boolean_or("attention_k_eq_v", false), decoder);
  read_rope(config, decoder);
  const int64_t intermediate = config.integer("intermediate_size");
  const bool sparse = config.boolean_or("enable_moe_block", false);
  if (sparse) {
    decoder.moe = config.read_moe("moe_intermediate_size", defaults);
    decoder.moe.shared_expert_intermediate_size = intermediate;
    decoder.moe.reads_residual = decoder.moe.expert_scale = true;
  }
  for (LayerConfig& layer : decoder.layers) {
    layer.moe = sparse;
    layer.intermediate_size = sparse ? 0 : intermediate;
  }
  decoder.names.norm_after_mixer = "post_attention_layernorm";
  decoder.names.feed_forward_norm = "pre_feedforward_layernorm";
  decoder.names.norm_after_feed_forward = "post_feedforward_layernorm";
  decoder.names.moe = decoder.names.file_moe = "";
  decoder.names.router = decoder.names.file_router = "router.proj";
  decoder.names.experts = ExpertFiles::kFused;
  decoder.names.shared_expert = "mlp";
  return decoder;
}

}  // namespace

DecoderConfig read_gemma4_text(const HfConfig& config) { return read_text(config); }

DecoderConfig read_gemma4(const HfConfig& config) {
  DecoderConfig decoder = read_text(config.text_config());
  decoder.tie_word_embeddings = config.boolean_or("tie_word_embeddings", true);
  decoder.names.prefix = "model.language_model.";
  for (const char* kept : {"vision_tower.", "embed_vision.", "audio_tower.", "embed_audio."}) {
    decoder.carried.prefixes.push_back(std::string("model.") + kept);
  }
  return decoder;
}

}  // namespace hone
