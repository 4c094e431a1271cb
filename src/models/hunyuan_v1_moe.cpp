// Hunyuan-A13B: norms of queries and keys that follow RoPE, a softmax router with renormalised weights, a shared MLP as
// wide as one expert. "dynamic" RoPE with alpha stretches theta once and for all.
#include <fmt/format.h>

#include "core/text/json.h"
#include "models/registry.h"

namespace hone {

namespace {

/// The fields of published files that the class does not have: other values describe other models.
void require_what_the_class_computes(const HfConfig& config, const DecoderConfig& decoder) {
  for (const char* key : {"use_cla", "use_mla", "mlp_bias", "moe_drop_tokens", "group_limited_greedy",
                          "moe_random_routing_dropped_token", "position_embedding_xdrope", "add_classification_head"}) {
    config.require(key, false);
  }
  for (const char* key : {"use_qk_norm", "use_mixed_mlp_moe", "use_rotary_pos_emb", "norm_topk_prob"}) {
    config.require(key, true);
  }
  config.require("routed_scaling_factor", 1.0);
  config.require("moe_layer_num_skipped", 0);
  config.require("attention_head_dim", decoder.head_dim);
  if (config.string_or("norm_type", "rms").find("rms") == std::string::npos) config.require("norm_type", "rms");
  const int64_t width = config.integer("intermediate_size");
  for (const auto& [key, only] :
       {std::pair<const char*, int64_t>{"num_shared_expert", 1}, {"moe_intermediate_size", width}}) {
    if (config.has(key) && config.of_all_layers(key) != only) {
      config.refuse(fmt::format("{}: only {} is supported", key, only));
    }
  }
}

}  // namespace

DecoderConfig read_hunyuan_v1_moe(const HfConfig& config) {
  const ClassDefaults defaults = {.rms_norm_eps = 1e-5, .pad_token_id = 0, .router_aux_loss_coef = 0};
  DecoderConfig decoder = config.read_decoder(defaults);
  decoder.qk_norm = decoder.qk_norm_last = true;
  decoder.qkv_bias = decoder.o_bias = config.boolean_or("attention_bias", false);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (decoder.rope.scaling.type != RopeType::kDynamic || !config.has(key)) continue;
    if (const double alpha = config.nested(key).number_or("alpha", 0); alpha != 0) decoder.rope.scaling.alpha = alpha;
  }
  MoeConfig& moe = decoder.moe = config.read_moe("intermediate_size", defaults);
  moe.shared_expert_intermediate_size = moe.moe_intermediate_size;
  for (LayerConfig& layer : decoder.layers) layer.moe = true;
  require_what_the_class_computes(config, decoder);
  decoder.names.q_norm = "query_layernorm";
  decoder.names.k_norm = "key_layernorm";
  decoder.names.router = decoder.names.file_router = "gate.wg";
  decoder.names.shared_expert = "mlp.shared_mlp";
  return decoder;
}

}  // namespace hone
