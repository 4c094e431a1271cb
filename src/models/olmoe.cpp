// OLMoE (OLMoE-1B-7B): RMSNorm over all heads of queries, and of keys, as one row; optional clamping of queries, keys
// and values; every layer sparse.
#include <fmt/format.h>

#include "models/registry.h"

namespace hone {

DecoderConfig read_olmoe(const HfConfig& config) {
  const ClassDefaults defaults = {
      .max_position_embeddings = 4096, .rms_norm_eps = 1e-5, .pad_token_id = 1, .router_aux_loss_coef = 0.01};
  DecoderConfig decoder = config.read_decoder(defaults);
  decoder.qk_norm_whole = true;
  decoder.clip_qkv = config.number_or("clip_qkv", 0.0);
  if (decoder.clip_qkv < 0) config.refuse(fmt::format("clip_qkv: {} is negative", decoder.clip_qkv));
  decoder.qkv_bias = decoder.o_bias = config.boolean_or("attention_bias", false);
  decoder.moe = config.read_moe("intermediate_size", defaults);
  decoder.moe.router.normalise = config.boolean_or("norm_topk_prob", false);
  for (LayerConfig& layer : decoder.layers) layer.moe = true;
  return decoder;
}

}  // namespace hone
