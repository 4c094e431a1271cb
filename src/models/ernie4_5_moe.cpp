// ERNIE 4.5 (ERNIE-4.5-21B-A3B, ERNIE-4.5-300B-A47B): RoPE on neighbouring dimensions, a softmax router whose choice is
// corrected by one bias per expert, and shared experts. Sparse layers lie between two indices, at an interval.
#include <fmt/format.h>

#include "core/text/json.h"
#include "models/registry.h"

namespace hone {

namespace {

/// Reads which layers are sparse: each moe_layer_interval-th one from moe_layer_start_index to moe_layer_end_index,
/// where -1 is the last.
void read_sparse_range(const HfConfig& config, DecoderConfig& decoder) {
  const auto count = static_cast<int64_t>(decoder.layers.size());
  const int64_t first = config.integer_or("moe_layer_start_index", 1);
  const bool to_the_last = config.number_or("moe_layer_end_index", -1) == -1;
  const int64_t last = to_the_last ? count - 1 : config.integer("moe_layer_end_index");
  const int64_t interval = config.integer_or("moe_layer_interval", 1);
  if (interval == 0) config.refuse("moe_layer_interval: 0 is out of range");
  for (int64_t i = 0; i < count; ++i) {
    LayerConfig& layer = decoder.layers[static_cast<size_t>(i)];
    layer.moe = (i + 1) % interval == 0 && i >= first && i <= last;
    if (!layer.moe) layer.intermediate_size = config.integer("intermediate_size");
  }
}

}  // namespace

DecoderConfig read_ernie4_5_moe(const HfConfig& config) {
  const ClassDefaults defaults = {.num_key_value_heads = 4,
                                  .max_position_embeddings = 131072,
                                  .rms_norm_eps = 1e-5,
                                  .rope_theta = 500000.0,
                                  .pad_token_id = 0};
  DecoderConfig decoder = config.read_decoder(defaults);
  decoder.tie_word_embeddings = config.boolean_or("tie_word_embeddings", true);
  decoder.rope_interleave = true;
  config.require("use_bias", false);  // the class gives biases to every projection then, and to the tied head
  config.require("use_rmsnorm", true);
  config.require("moe_gate", "topk");
  config.require("moe_use_aux_free", true);
  MoeConfig& moe = decoder.moe = config.read_moe("moe_intermediate_size", defaults);
  const double least_sum = config.number_or("moe_norm_min", 1e-12);
  if (!(least_sum >= 0)) config.refuse(fmt::format("moe_norm_min: {} is negative", least_sum));
  moe.router.least_sum = static_cast<float>(least_sum);
  // The class's auxiliary loss counts the experts that would be chosen without the bias. The bias balances them, and
  // fine-tuning does not change it.
  moe.router_aux_loss_coef = 0;
  moe.selection_bias = true;
  moe.shared_expert_intermediate_size = moe.moe_intermediate_size * config.integer_or("moe_num_shared_experts", 2);
  decoder.names.selection_bias = "gate.moe_statics.e_score_correction_bias";
  decoder.names.file_selection_bias = "moe_statics.e_score_correction_bias";
  decoder.names.selection_bias_row = true;
  decoder.names.shared_expert = "mlp.shared_experts";
  decoder.carried.prefixes.push_back("model.mtp_");
  read_sparse_range(config, decoder);
  return decoder;
}

}  // namespace hone
