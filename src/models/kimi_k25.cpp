// Kimi-K2.5 and K2.6: DeepSeek-V3 as the text model of a checkpoint with images, whose vision tower and projector are
// kept unchanged. Published files have the experts' weights in 4 bits (weights/compressed_matrix.h).
#include "models/registry.h"

namespace hone {

DecoderConfig read_kimi_k25(const HfConfig& config) {
  const HfConfig text = config.text_config();
  if (const std::string type = text.string_or("model_type", "deepseek_v3");
      type != "deepseek_v3" && type != "kimi_k2") {
    text.refuse("model_type: \"" + type + "\" is not supported (only kimi_k2, which is deepseek_v3)");
  }
  DecoderConfig decoder = read_deepseek_v3(text);
  decoder.tie_word_embeddings = config.boolean_or("tie_word_embeddings", true);
  decoder.names.prefix = "model.language_model.";
  decoder.names.file_parts = {{decoder.names.prefix, "language_model.model."}, {"lm_head.", "language_model.lm_head."}};
  for (const char* kept : {"vision_tower.", "mm_projector."}) {
    decoder.carried.prefixes.emplace_back(kept);
    decoder.carried.prefixes.push_back(std::string("model.") + kept);
  }
  return decoder;
}

}  // namespace hone
