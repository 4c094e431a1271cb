#include "models/deepseek.h"

#include <fmt/format.h>

#include <cmath>

#include "core/text/json.h"

namespace hone {

namespace {

/// Reads the sizes of latent attention, which must be positive, and sets head_dim and v_head_dim from them.
void read_latent(const HfConfig& config, int64_t q_lora_rank, DecoderConfig& decoder) {
  LatentConfig& latent = decoder.latent;
  const auto size = [&](const char* key) {
    const int64_t value = config.integer(key);
    if (value == 0) config.refuse(fmt::format("{}: 0 is out of range", key));
    return value;
  };
  latent.q_lora_rank = config.is_null("q_lora_rank") ? 0 : config.integer_or("q_lora_rank", q_lora_rank);
  latent.kv_lora_rank = size("kv_lora_rank");
  latent.qk_nope_head_dim = size("qk_nope_head_dim");
  latent.qk_rope_head_dim = size("qk_rope_head_dim");
  latent.v_head_dim = size("v_head_dim");
  if (latent.qk_rope_head_dim % 2 != 0) {
    config.refuse(fmt::format("qk_rope_head_dim: {} must be even", latent.qk_rope_head_dim));
  }
  if (decoder.num_key_value_heads != decoder.num_attention_heads) {
    config.refuse(
        fmt::format("num_key_value_heads: {} is not supported (latent attention has keys and values for each "
                    "of its {} heads)",
                    decoder.num_key_value_heads, decoder.num_attention_heads));
  }
  decoder.head_dim = latent.qk_head_dim();
  decoder.v_head_dim = latent.v_head_dim;
  decoder.rope.rotary_dim = latent.qk_rope_head_dim;
  for (LayerConfig& layer : decoder.layers) layer.mixer = MixerKind::kLatentAttention;
}

/// The scale of attention scores. YaRN multiplies it by mscale², once for queries and once for keys, since RoPE's own
/// factor would apply to a part of each head only.
double attention_scale(const DecoderConfig& decoder) {
  const double plain = 1 / std::sqrt(static_cast<double>(decoder.head_dim));
  const RopeScaling& scaling = decoder.rope.scaling;
  if (scaling.type == RopeType::kDefault || scaling.mscale_all_dim.value_or(0) == 0) return plain;
  const double mscale = yarn_mscale(scaling.factor.value_or(1), *scaling.mscale_all_dim);
  return plain * mscale * mscale;
}

}  // namespace

DecoderConfig read_deepseek(const HfConfig& config, const DeepseekDefaults& defaults) {
  DecoderConfig decoder = config.read_decoder(defaults.decoder);
  read_latent(config, defaults.q_lora_rank, decoder);
  decoder.attention_scale = attention_scale(decoder);
  decoder.qkv_bias = decoder.o_bias = config.boolean_or("attention_bias", false);
  config.require("mlp_bias", false);
  MoeConfig& moe = decoder.moe = config.read_moe("moe_intermediate_size", defaults.decoder);
  moe.router.scale = static_cast<float>(config.number_or("routed_scaling_factor", defaults.routed_scaling_factor));
  moe.shared_expert_intermediate_size =
      moe.moe_intermediate_size * config.integer_or("n_shared_experts", defaults.n_shared_experts);
  decoder.names.shared_expert = "mlp.shared_experts";
  config.read_leading_dense_layers(defaults.first_k_dense_replace, decoder);
  return decoder;
}

void read_corrected_router(const HfConfig& config, int64_t n_group, int64_t topk_group, DecoderConfig& decoder) {
  // transformers rotates head_dim dimensions, where config.json has the field.
  const int64_t rotated = decoder.latent.qk_rope_head_dim;
  if (const int64_t stated = config.integer_or("head_dim", rotated); stated != rotated) {
    config.refuse(fmt::format("head_dim: {} is not qk_rope_head_dim, which is {}", stated, rotated));
  }
  config.require("scoring_func", "sigmoid");
  config.require("topk_method", "noaux_tc");
  decoder.latent.rope_interleave = config.boolean_or("rope_interleave", true);
  decoder.moe.router.scores = RouterScores::kSigmoid;
  decoder.moe.router.normalise = config.boolean_or("norm_topk_prob", true);
  decoder.moe.selection_bias = true;
  read_groups_of_two_best(config, n_group, topk_group, decoder.moe);
}

void read_groups_of_two_best(const HfConfig& config, int64_t n_group, int64_t topk_group, MoeConfig& moe) {
  for (const char* key : {"n_group", "topk_group"}) {
    if (config.is_null(key)) config.refuse(fmt::format("{}: null is not supported", key));
  }
  config.read_expert_groups(GroupScore::kTopTwo, config.integer_or("n_group", n_group),
                            config.integer_or("topk_group", topk_group), moe);
}

}  // namespace hone
