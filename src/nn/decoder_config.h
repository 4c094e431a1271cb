// What a decoder-only transformer is built from; model files fill it from config.json.
#pragma once

#include <string>
#include <vector>

#include "core/dtype.h"
#include "ops/qk_norm_rope/rope_table.h"

namespace hone {

/// What mixes the tokens of a layer.
enum class MixerKind {
  kAttention,  ///< nn/attention.h
};

/// One layer of a decoder.
struct LayerConfig {
  MixerKind mixer = MixerKind::kAttention;
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

/// How an architecture names its tensors in memory and in files.
struct DecoderNames {
  std::string prefix = "model.";  ///< of everything but the head; a text model inside a larger one has a longer one
  std::string moe = "mlp";        ///< module of router and experts in memory ("mlp.gate", "mlp.experts")
  std::string file_moe = "mlp";   ///< the same in files
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  ///< per-expert tensors in files
};

struct DecoderConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;  ///< RMSNorm over head_dim on queries and keys
  bool attention_sinks = false;  ///< a learned logit for each head in the denominator of attention's softmax
  double rms_norm_eps = 1e-6;
  RopeParameters rope;
  bool tie_word_embeddings = false;
  int64_t pad_token_id = -1;  ///< its row of the embedding is not trained by its use as input; -1: none
  double initializer_range = 0.02;
  std::vector<LayerConfig> layers;
  MoeConfig moe;
  DecoderNames names;
  /// Tensors of files that are not the decoder's (a vision tower, heads that predict further tokens) begin with one of
  /// these: they are not trained, and written back as they are.
  std::vector<std::string> carried_prefixes;

  /// "model.layers.3.": what the names of a layer's tensors begin with.
  std::string layer_module(int layer) const { return names.prefix + "layers." + std::to_string(layer) + "."; }
  int64_t num_moe_layers() const {
    int64_t n = 0;
    for (const LayerConfig& layer : layers) n += layer.moe;
    return n;
  }
};

}  // namespace hone
