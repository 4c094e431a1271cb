// Qwen3-VL-MoE (Qwen3-VL-30B-A3B, Qwen3-VL-235B-A22B): Qwen3-MoE's text model inside a checkpoint with images, whose
// vision tower is kept unchanged. A token of text has one position, so its M-RoPE is RoPE.
#include "core/text/json.h"
#include "models/registry.h"

namespace hone {

DecoderConfig read_qwen3_vl_moe(const HfConfig& config) {
  const HfConfig text = config.text_config();
  const ClassDefaults defaults = {.num_key_value_heads = 16, .max_position_embeddings = 128000, .rope_theta = 500000.0};
  DecoderConfig decoder = text.read_decoder(defaults);
  decoder.tie_word_embeddings = config.boolean_or("tie_word_embeddings", false);
  decoder.qk_norm = true;
  decoder.qkv_bias = decoder.o_bias = text.boolean_or("attention_bias", false);
  decoder.moe = text.read_moe("moe_intermediate_size", defaults);
  text.require("norm_topk_prob", true);
  text.require("use_sliding_window", false);
  text.read_sparse_layers(decoder);
  if (2 * decoder.moe.moe_intermediate_size == decoder.hidden_size) {
    text.refuse("moe_intermediate_size: half of hidden_size does not tell the two orders of expert tensors apart");
  }
  decoder.names.prefix = "model.language_model.";
  decoder.names.experts = ExpertFiles::kFusedEitherWay;
  decoder.carried.prefixes.push_back("model.visual.");
  return decoder;
}

}  // namespace hone
