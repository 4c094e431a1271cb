// The configuration of a decoder-only transformer; model files fill it from config.json.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "kernels/mlp_activation.h"
#include "ops/gated_delta_rule/gated_delta_rule.h"
#include "ops/qk_norm_rope/rope_table.h"
#include "ops/rms_norm/norm_weighting.h"
#include "ops/router/router_rule.h"
#include "ops/ssd_scan/ssd_scan.h"
#include "params/carried_names.h"
#include "params/parameter.h"

namespace hone {

/// The mixer of a layer.
enum class MixerKind {
  kNone,             ///< the layer is a feed-forward alone
  kAttention,        ///< nn/attention.h
  kLatentAttention,  ///< nn/latent_attention.h
  kGatedDeltaNet,    ///< nn/gated_delta_net.h
  kMamba2,           ///< nn/mamba2.h
};

/// Whether a mixer keeps a state of constant size instead of keys and values: it cannot be rewound.
inline bool is_recurrent(MixerKind mixer) { return mixer == MixerKind::kGatedDeltaNet || mixer == MixerKind::kMamba2; }

/// One layer of a decoder: a mixer, a feed-forward, or both, each with a norm before it and a residual.
struct LayerConfig {
  MixerKind mixer = MixerKind::kAttention;
  int64_t sliding_window = 0;  ///< 0: full attention
  /// Sizes in this layer's attention, where they differ from the model's; 0: they do not.
  int64_t head_dim = 0, num_key_value_heads = 0;
  bool values_are_keys = false;   ///< attention has no v_proj: values are what k_proj computes
  int64_t intermediate_size = 0;  ///< the dense MLP's; 0 in a MoE layer
  bool moe = false;

  bool has_mixer() const { return mixer != MixerKind::kNone; }
  bool has_feed_forward() const { return moe || intermediate_size > 0; }
  bool operator==(const LayerConfig&) const = default;
};

struct MoeConfig {
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  RouterRule router;
  bool router_bias = false;        ///< the router's linear weight has a bias
  bool selection_bias = false;     ///< the router's choice has e_score_correction_bias, a buffer
  double router_jitter_noise = 0;  ///< training multiplies the layer's input by random numbers in 1 ± this
  int64_t shared_expert_intermediate_size = 0;  ///< the width of the expert that all tokens use; 0: none
  bool shared_expert_gate = false;              ///< its output is multiplied by sigmoid(x · gateᵀ), gate [1, H]
  bool expert_bias = false;                     ///< both products of an expert have a bias
  /// The router and the experts read the residual sum, each after its own norm. The outputs of the experts and of the
  /// shared expert are normalised before they are added (Gemma 4, whose shared expert is the layer's MLP). The router's
  /// norm has no weight; its result is multiplied by a trained scale [H] and by 1 / sqrt(H).
  bool reads_residual = false;
  bool expert_scale = false;  ///< the weight of a chosen expert is multiplied by a trained factor of the expert
  double router_aux_loss_coef = 0;

  bool operator==(const MoeConfig&) const = default;
};

/// Layers of linear attention.
struct DeltaNetConfig {
  DeltaHeads heads;
  int64_t conv_taps = 4;           ///< taps of the short convolution
  bool fused_projections = false;  ///< q, k, v and z in one weight, b and a in another, key head by key head

  bool operator==(const DeltaNetConfig&) const = default;
};

/// Layers of Mamba-2.
struct Mamba2Config {
  SsdHeads heads;
  int64_t conv_taps = 4;
  bool conv_bias = true, proj_bias = false;

  bool operator==(const Mamba2Config&) const = default;
};

/// The layout of a layer's experts in files.
enum class ExpertFiles {
  kSeparate,         ///< a tensor for each expert and projection, or as kFused
  kFused,            ///< all experts in one tensor
  kFusedTransposed,  ///< as kFused, [E, H, 2I] with interleaved columns of gate and up, and [E, I, H] (gpt-oss)
  kFusedEitherWay,   ///< [E, H, 2I] and [E, I, H] with the columns of gate first, or as kFused: their shapes say which
};

/// The latents of latent attention, and the parts of a head.
struct LatentConfig {
  int64_t q_lora_rank = 0;  ///< 0: queries are projected in one step
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  bool rope_interleave = true;  ///< RoPE rotates neighbouring dimensions as pairs
  QueryScaling query_scaling;   ///< scales whole queries; needs rope_interleave and an even qk_nope_head_dim

  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  bool operator==(const LatentConfig&) const = default;
};

/// Names of an architecture's tensors in memory and in files.
struct DecoderNames {
  std::string prefix =
      "model.";  ///< begins the names of all tensors but the head; longer for a text model inside a larger model
  /// Files name tensors with the second text of a pair where the name in memory begins with the first or, if that
  /// begins with a dot, has it.
  std::vector<std::pair<std::string, std::string>> file_parts = {};
  std::string embedding = "embed_tokens", final_norm = "norm";  ///< below prefix
  /// The norms before a layer's halves.
  std::string mixer_norm = "input_layernorm", feed_forward_norm = "post_attention_layernorm";
  /// Norms of what a half adds to the residual; empty: none.
  std::string norm_after_mixer = "", norm_after_feed_forward = "";
  std::string attention = "self_attn", mamba = "mamba";  ///< modules of such mixers
  std::string moe = "mlp";       ///< module of router and experts in memory ("mlp.gate", "mlp.experts"); "": the layer
  std::string file_moe = "mlp";  ///< the same in files
  std::string q_norm = "q_norm", k_norm = "k_norm";  ///< below attention
  std::string router = "gate";                       ///< below moe
  std::string file_router = "gate";
  std::string selection_bias = "gate.e_score_correction_bias", file_selection_bias = selection_bias;
  bool selection_bias_row = false;  ///< files have it as [1, E]
  ExpertFiles experts = ExpertFiles::kSeparate;
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  ///< per-expert tensors in files
  /// Fused tensors in files, below file_moe. Without a gate fused_gate_up is up alone, experts.up_proj in memory.
  std::string fused_gate_up = "experts.gate_up_proj", fused_down = "experts.down_proj";
  std::string mlp = "mlp";                          ///< a dense layer's MLP
  bool mlp_fused = false;                           ///< its gate and up are one weight, input_linear
  std::string shared_expert = "mlp.shared_expert";  ///< below the layer; "_gate" is appended for its gate
  bool shared_expert_fused = false;                 ///< its gate and up are one weight, input_linear

  bool operator==(const DecoderNames&) const = default;
};

struct DecoderConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0, num_key_value_heads = 0;
  int64_t head_dim = 0;        ///< elements of queries and keys
  int64_t v_head_dim = 0;      ///< elements of values
  double attention_scale = 0;  ///< multiplies attention scores; 0: 1 / sqrt(head_dim)
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  MlpActivation activation;  ///< in all MLPs: dense ones, the shared expert and experts; in experts alone if it clamps
  bool attention_sinks = false;        ///< a learned logit for each head in the denominator of attention's softmax
  bool qk_norm = false;                ///< RMSNorm over head_dim on queries and keys
  bool qk_norm_whole = false;          ///< the same over all heads together (OLMoE)
  bool qk_norm_last = false;           ///< qk_norm follows RoPE instead of preceding it (Hunyuan)
  bool attention_output_gate = false;  ///< q_proj also computes a gate of attention's output for each head
  bool value_norm = false;             ///< RMSNorm over head_dim on values, without a weight
  bool rotates = true;                 ///< attention has RoPE
  bool rope_interleave = false;        ///< RoPE rotates neighbouring dimensions as pairs (LatentConfig has its own)
  double clip_qkv = 0;                 ///< queries, keys and values are clamped to ± this; 0: no clamp
  /// Granite's factors: the embedding and each half's output are multiplied by the first two; logits are divided by
  /// logits_scaling.
  double embedding_multiplier = 1, residual_multiplier = 1, logits_scaling = 1;
  /// The multiplier belongs to the embedding: it is rounded to the model's dtype, and noise comes after it (Gemma).
  bool scaled_embedding = false;
  double logits_soft_cap = 0;  ///< logits are put through c · tanh(· / c), after their scaling; 0: no
  bool layer_scalar = false;   ///< a layer's output is multiplied by a number of its own, which is not trained
  double rms_norm_eps = 1e-6;
  NormWeighting norm_weighting = NormWeighting::kPlain;  ///< all norms but those of linear attention
  RopeParameters rope;
  std::optional<RopeParameters> window_rope;  ///< for layers with a window, where it is another
  bool tie_word_embeddings = false;
  int64_t pad_token_id = -1;  ///< as input, it does not train its row of the embedding; -1: none
  double initializer_range = 0.02;
  std::vector<LayerConfig> layers;
  LatentConfig latent;
  MoeConfig moe;
  DeltaNetConfig delta_net;
  Mamba2Config mamba;
  DecoderNames names;
  CarriedNames carried;  ///< tensors of its files outside the decoder

  /// "model.layers.3.": the prefix of a layer's tensors.
  std::string layer_module(int layer) const { return names.prefix + "layers." + std::to_string(layer) + "."; }
  int64_t head_dim_of(const LayerConfig& layer) const { return layer.head_dim > 0 ? layer.head_dim : head_dim; }
  int64_t kv_heads_of(const LayerConfig& layer) const {
    return layer.num_key_value_heads > 0 ? layer.num_key_value_heads : num_key_value_heads;
  }
  /// The RoPE of a layer.
  const RopeParameters& rope_of(const LayerConfig& layer) const {
    return layer.sliding_window > 0 && window_rope ? *window_rope : rope;
  }
  float softmax_scale() const {
    return static_cast<float>(attention_scale != 0 ? attention_scale : 1 / std::sqrt(static_cast<double>(head_dim)));
  }
  /// Initial values of norm weights in a new model: a factor of one.
  InitialValues initial_norm() const {
    return norm_weighting == NormWeighting::kFromOne ? InitialValues::kZeros : InitialValues::kOnes;
  }
  int64_t num_moe_layers() const {
    int64_t n = 0;
    for (const LayerConfig& layer : layers) n += layer.moe;
    return n;
  }
  /// The width of the widest dense MLP or shared expert; 0: there is none.
  int64_t widest_mlp() const {
    int64_t width = 0;
    for (const LayerConfig& layer : layers) {
      width = std::max(width, layer.moe ? moe.shared_expert_intermediate_size : layer.intermediate_size);
    }
    return width;
  }
  bool operator==(const DecoderConfig&) const = default;
};

}  // namespace hone
