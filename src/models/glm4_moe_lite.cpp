// GLM-4.7-Flash: DeepSeek-V3's latent attention, with values as wide as queries and keys, and GLM-4.5's router and
// shared expert. mlp_layer_types names the sparse layers.
#include <fmt/format.h>

#include <algorithm>

#include "core/text/json.h"
#include "models/deepseek.h"
#include "models/registry.h"

namespace hone {

namespace {

/// Reads mlp_layer_types; without it all layers but the first are sparse. The class ignores what read_deepseek read,
/// and other programs do not: a file in which the two differ is refused.
void read_layer_types(const HfConfig& config, DecoderConfig& decoder) {
  const std::vector<LayerConfig> by_number = decoder.layers;
  for (size_t i = 0; i < decoder.layers.size(); ++i) {
    LayerConfig& layer = decoder.layers[i];
    layer.moe = i > 0;
    if (config.has("mlp_layer_types")) {
      const Json& types = config.json().at("mlp_layer_types");
      if (!types.is_array() || types.size() != decoder.layers.size()) {
        config.refuse("mlp_layer_types does not list every layer");
      }
      layer.moe = types[i] == "sparse";
      if (!layer.moe && types[i] != "dense") {
        config.refuse(fmt::format("mlp_layer_types: {} is not supported", types[i].dump()));
      }
    }
    layer.intermediate_size = layer.moe ? 0 : config.integer("intermediate_size");
  }
  for (const char* key : {"first_k_dense_replace", "moe_layer_freq"}) {
    if (config.has(key) && by_number != decoder.layers) {
      config.refuse(fmt::format("{} contradicts mlp_layer_types, whose default is that the first layer is dense", key));
    }
  }
}

}  // namespace

DecoderConfig read_glm4_moe_lite(const HfConfig& config) {
  DecoderConfig decoder = read_deepseek(config, {.decoder = {.num_key_value_heads = 20,
                                                             .max_position_embeddings = 202752,
                                                             .rms_norm_eps = 1e-5,
                                                             .router_aux_loss_coef = 0},
                                                 .first_k_dense_replace = 1,
                                                 .n_shared_experts = 1,
                                                 .routed_scaling_factor = 1.8,
                                                 .q_lora_rank = 768});
  read_corrected_router(config, 1, 1, decoder);
  read_layer_types(config, decoder);
  return decoder;
}

}  // namespace hone
