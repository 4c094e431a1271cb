// What a decoder-only transformer is built from; model files fill it from config.json.
#pragma once

#include <string>
#include <vector>

#include "core/dtype.h"
#include "ops/qk_norm_rope/rope_table.h"

namespace hone {

/// One layer of a decoder.
struct LayerConfig {
  int64_t sliding_window = 0;     ///< 0: full attention
  int64_t intermediate_size = 0;  ///< of the dense MLP; 0 in a MoE layer
  bool moe = false;
};

struct MoeConfig {
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  bool norm_topk_prob = true;
  double router_aux_loss_coef = 0;
};

/// How an architecture names its tensors below model.layers.N. in memory and in files.
struct DecoderNames {
  std::string moe = "mlp";       ///< module of router and experts in memory ("mlp.gate", "mlp.experts")
  std::string file_moe = "mlp";  ///< the same in files
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  ///< per-expert tensors in files
};

struct DecoderConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;  ///< RMSNorm over head_dim on queries and keys
  double rms_norm_eps = 1e-6;
  RopeParameters rope;
  bool tie_word_embeddings = false;
  int64_t pad_token_id = -1;  ///< its row of the embedding is not trained by its use as input; -1: none
  double initializer_range = 0.02;
  std::vector<LayerConfig> layers;
  MoeConfig moe;
  DecoderNames names;

  int64_t num_moe_layers() const {
    int64_t n = 0;
    for (const LayerConfig& layer : layers) n += layer.moe;
    return n;
  }
};

}  // namespace hone
