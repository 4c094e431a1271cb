// What every block of a forward pass may read.
#pragma once

#include <optional>
#include <vector>

#include "kernels/lora_dropout.h"
#include "nn/batch.h"
#include "ops/qk_norm_rope/qk_norm_rope.h"

namespace hone {

/// What layers keep of N generated sequences: of each layer what its mixer asks for (Mixer::cache).
struct DecoderCache {
  std::vector<std::vector<Tensor>> layers;
  Tensor lengths;  ///< i32 [N], tokens of each sequence before this call
};

/// What a run adds to the model's own forward pass and loss while it trains; 0: nothing.
struct TrainingMethods {
  float label_smoothing = 0;                      ///< ε of ops/linear_cross_entropy
  float neftune_noise_alpha = 0;                  ///< α of ops/embedding_noise
  float router_z_loss_coef = 0;                   ///< of ops/router
  std::optional<float> router_jitter_noise = {};  ///< ε of ops/router_jitter; unset: what the model's config says
};

/// One call of a model. Everything outlives the tape.
struct Forward {
  const DeviceBatch* batch = nullptr;
  StepMemory step;
  TrainingMethods methods;
  const RoutingBuffers* routing = nullptr;  ///< null: routers measure nothing and have no auxiliary loss
  DecoderCache* cache = nullptr;            ///< generation: attention reads and extends it
  /// Expert choices to use instead of the router's own: i32 [T, k] for each MoE layer (verification), or empty.
  std::vector<Tensor> forced_expert_ids;
  /// Where the experts that were chosen go: i32 [T, k] for each MoE layer (verification), or empty.
  std::vector<Tensor> recorded_expert_ids;

  LoraDropoutContext dropout_context() const {
    return {.scalars = step.scalars, .sample_ids = batch->sample_ids, .positions = batch->positions};
  }
};

}  // namespace hone
