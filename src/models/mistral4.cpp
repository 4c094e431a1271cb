// Mistral-Small-4: DeepSeek's latent attention, whose queries are scaled by their position, and a softmax router over
// groups; alone or inside a checkpoint with images, whose vision tower and projector are kept unchanged.
#include <fmt/format.h>

#include <cmath>

#include "core/text/json.h"
#include "models/deepseek.h"
#include "models/registry.h"

namespace hone {

namespace {

/// Reads what rope_parameters say beside RoPE. The class computes nothing from rope_scaling, and where both are missing
/// has those of the released model.
void read_rope_parameters(const HfConfig& config, DecoderConfig& decoder) {
  constexpr const char *kParameters = "rope_parameters", *kBeta = "llama_4_scaling_beta",
                       *kFactor = "partial_rotary_factor";
  LatentConfig& latent = decoder.latent;
  if (config.has("rope_scaling")) config.refuse("rope_scaling is not supported", "name it rope_parameters");
  config.require("rope_interleave", true);
  if (const int64_t head = latent.qk_head_dim(); config.integer_or("head_dim", head) != head) {
    config.refuse(fmt::format("head_dim is not qk_nope_head_dim + qk_rope_head_dim, which is {}", head));
  }
  if (latent.qk_nope_head_dim % 2 != 0) config.refuse("qk_nope_head_dim: an odd number is not supported");
  latent.query_scaling = {.beta = 0.1, .length = 8192};
  if (!config.has(kParameters)) return config.require("rope_theta", 10000.0);
  const HfConfig rope = config.nested(kParameters);
  rope.has("max_position_embeddings");  // the class repeats it here, and does not read it
  if (!rope.has(kBeta)) rope.refuse(fmt::format("{}.{} is missing", kParameters, kBeta));
  const int64_t length = decoder.rope.scaling.original_max_position_embeddings.value_or(0);
  if (length == 0) rope.refuse("original_max_position_embeddings is missing from rope_parameters");
  latent.query_scaling = {.beta = rope.number_or(kBeta, 0), .length = length};
  const auto head = static_cast<double>(latent.qk_head_dim()), turned = static_cast<double>(latent.qk_rope_head_dim);
  if (std::lround(rope.number_or(kFactor, turned / head) * head) != latent.qk_rope_head_dim) {
    rope.refuse(fmt::format("{} contradicts qk_nope_head_dim and qk_rope_head_dim", kFactor));
  }
}

}  // namespace

DecoderConfig read_mistral4(const HfConfig& config) {
  const RopeScaling scaling = {.type = RopeType::kYarn,
                               .factor = 128.0,
                               .original_max_position_embeddings = 8192,
                               .mscale = 1.0,
                               .mscale_all_dim = 1.0};
  DecoderConfig decoder = read_deepseek(config, {.decoder = {.num_key_value_heads = 32,
                                                             .max_position_embeddings = 1048576,
                                                             .rope_scaling = scaling,
                                                             .partial_rotary_factor = 1.0,
                                                             .pad_token_id = 11,
                                                             .router_aux_loss_coef = 0},
                                                 .first_k_dense_replace = 0,
                                                 .n_shared_experts = 1,
                                                 .routed_scaling_factor = 1.0,
                                                 .q_lora_rank = 1024});
  read_rope_parameters(config, decoder);
  decoder.moe.router.normalise = config.boolean_or("norm_topk_prob", true);
  read_groups_of_two_best(config, 1, 1, decoder.moe);
  decoder.names.experts = ExpertFiles::kFused;
  return decoder;
}

DecoderConfig read_mistral3(const HfConfig& config) {
  const HfConfig text = config.text_config();
  if (const std::string type = text.string_or("model_type", "mistral"); type != "mistral4") {
    config.refuse(fmt::format("text_config.model_type: \"{}\" is not supported (only mistral4)", type));
  }
  DecoderConfig decoder = read_mistral4(text);
  decoder.tie_word_embeddings = config.boolean_or("tie_word_embeddings", true);
  decoder.names.prefix = "model.language_model.";
  decoder.names.file_parts = {{decoder.names.prefix, "language_model.model."}, {"lm_head.", "language_model.lm_head."}};
  for (const char* kept : {"vision_tower.", "multi_modal_projector."}) {
    decoder.carried.prefixes.emplace_back(kept);
    decoder.carried.prefixes.push_back(std::string("model.") + kept);
  }
  return decoder;
}

}  // namespace hone
