// OLMoE (OLMoE-1B-7B): RMSNorm over all heads of queries, and of keys, as one row; optional clamping of queries, keys
// and values; every layer sparse.
#include <fmt/format.h>

#include "models/registry.h"

namespace hone {

DecoderConfig read_olmoe(const HfConfig& config) {
  DecoderConfig decoder = config.read_decoder();
  decoder.rms_norm_eps = config.number_or("rms_norm_eps", 1e-5);
  decoder.qk_norm_whole = true;
  decoder.clip_qkv = config.number_or("clip_qkv", 0.0);
  if (decoder.clip_qkv < 0) config.refuse(fmt::format("clip_qkv: {} is negative", decoder.clip_qkv));
  decoder.qkv_bias = decoder.o_bias = config.boolean_or("attention_bias", false);
  decoder.moe = config.read_moe("intermediate_size");
  decoder.moe.router_aux_loss_coef = config.number_or("router_aux_loss_coef", 0.01);
  decoder.moe.router.normalise = config.boolean_or("norm_topk_prob", false);
  for (LayerConfig& layer : decoder.layers) layer.moe = true;
  return decoder;
}

}  // namespace hone
