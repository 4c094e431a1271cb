// Qwen3.5-MoE: a text model, alone or inside a multimodal checkpoint, whose vision tower and multi-token prediction
// heads are kept unchanged.
#include "models/qwen3_next.h"
#include "models/registry.h"

namespace hone {

DecoderConfig read_qwen3_5_moe_text(const HfConfig& config) {
  DecoderConfig decoder = read_gated_hybrid(config);
  decoder.moe.router.normalise = true;
  for (LayerConfig& layer : decoder.layers) layer.moe = true;
  return decoder;
}

DecoderConfig read_qwen3_5_moe(const HfConfig& config) {
  DecoderConfig decoder = read_qwen3_5_moe_text(config.text_config());
  // The outer config has the head, so its field counts.
  decoder.tie_word_embeddings = config.boolean_or("tie_word_embeddings", false);
  decoder.names.prefix = "model.language_model.";
  decoder.carried.prefixes.push_back("model.visual.");
  return decoder;
}

}  // namespace hone
