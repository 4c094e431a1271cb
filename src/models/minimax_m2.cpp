// MiniMax-M2 (MiniMax-M2, M2.1, M2.5, M2.7): RMSNorm over all heads of queries, and of keys, as one row, before RoPE on
// a part of each head; every layer sparse, with a sigmoid router whose choice is corrected by one bias per expert.
// Files name the experts as Mixtral's do, and are published in blocks of FP8.
#include <fmt/format.h>

#include <algorithm>

#include "core/base/float_value.h"
#include "core/text/json.h"
#include "models/registry.h"

namespace hone {

DecoderConfig read_minimax_m2(const HfConfig& config) {
  // Published files state the rotated dimensions of a head instead of their share.
  const auto head_dim = static_cast<double>(config.integer_or("head_dim", 128));
  const double rotated = config.number_or("rotary_dim", head_dim);
  const ClassDefaults defaults = {.num_key_value_heads = 8,
                                  .head_dim = 128,
                                  .max_position_embeddings = 196608,
                                  .rope_theta = 5e6,
                                  .partial_rotary_factor = rotated / head_dim};
  DecoderConfig decoder = config.read_decoder(defaults);
  decoder.qk_norm_whole = true;
  config.require("use_qk_norm", true);
  config.require("qk_norm_type", "per_layer");
  if (config.has("attn_type_list")) {
    const Json& kinds = config.json().at("attn_type_list");
    const auto is_full = [](const Json& kind) { return kind == 1; };
    if (!kinds.is_array() || !std::all_of(kinds.begin(), kinds.end(), is_full)) {
      config.refuse("attn_type_list: only full attention (1) is supported");
    }
  }
  config.require("scoring_func", "sigmoid");
  config.require("use_routing_bias", true);
  config.require("shared_intermediate_size", 0);
  MoeConfig& moe = decoder.moe = config.read_moe("intermediate_size", defaults);
  moe.router.scores = RouterScores::kSigmoid;
  moe.selection_bias = true;
  // The class's auxiliary loss takes the softmax of logits whose sigmoids route. The bias balances the experts, and
  // fine-tuning does not change it.
  moe.router_aux_loss_coef = 0;
  const double jitter = moe.router_jitter_noise = config.number_or("router_jitter_noise", 0.0);
  if (!is_below_one(jitter)) {
    config.refuse(fmt::format("router_jitter_noise: {} is not in [0, 1) in float32", jitter));
  }
  decoder.names = {.file_moe = "block_sparse_moe",
                   .selection_bias = "e_score_correction_bias",
                   .gate = "w1",
                   .up = "w3",
                   .down = "w2"};
  for (LayerConfig& layer : decoder.layers) layer.moe = true;
  return decoder;
}

}  // namespace hone
