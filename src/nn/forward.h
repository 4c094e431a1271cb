// The context of a forward pass, which all of its blocks may read.
#pragma once

#include <optional>
#include <vector>

#include "kernels/lora_dropout.h"
#include "nn/batch.h"
#include "ops/moe_experts/token_exchange.h"
#include "ops/qk_norm_rope/qk_norm_rope.h"

namespace hone {

/// The caches of N generated sequences: the tensors of each layer's mixer (Mixer::cache).
struct DecoderCache {
  std::vector<std::vector<Tensor>> layers;
  std::vector<Tensor> pages;  ///< KvCache::pages for each layer, undefined where it has none
  Tensor lengths;             ///< i32 [N], tokens of each sequence before this call
};

/// Additions of a run to the model's forward pass and loss during training; 0: none.
struct TrainingMethods {
  float label_smoothing = 0;                      ///< ε of ops/linear_cross_entropy
  float neftune_noise_alpha = 0;                  ///< α of ops/embedding_noise
  float router_z_loss_coef = 0;                   ///< for ops/router
  std::optional<float> router_jitter_noise = {};  ///< ε of ops/router_jitter; unset: the value of the model's config
};

/// The arguments of one forward pass. Everything they point to must outlive the tape.
struct Forward {
  const DeviceBatch* batch = nullptr;
  StepMemory step;
  TrainingMethods methods;
  const RoutingBuffers* routing = nullptr;  ///< null: routers measure nothing and have no auxiliary loss
  DecoderCache* cache = nullptr;            ///< generation: attention reads and extends it
  LoraDropoutContext on_host = {};          ///< dropout_context() in host memory, for experts that are computed there
  TokenExchange* exchange = nullptr;        ///< connects the ranks that share the experts; null: all experts are here
  int64_t moe_token_tile = 0;               ///< how many tokens experts take at a time (moe_experts); 0: all
  int64_t mlp_token_tile = 0;               ///< the same of dense MLPs and shared experts (row_tiles)
  /// Expert choices to use instead of the router's own: i32 [T, k] for each MoE layer (verification), or empty.
  std::vector<Tensor> forced_expert_ids;
  /// Receives the chosen experts: i32 [T, k] for each MoE layer (verification), or empty.
  std::vector<Tensor> recorded_expert_ids;

  LoraDropoutContext dropout_context() const {
    return {.scalars = step.scalars, .sample_ids = batch->sample_ids, .positions = batch->positions};
  }
};

}  // namespace hone
