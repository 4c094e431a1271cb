// What every block of a forward pass may read.
#pragma once

#include <vector>

#include "nn/batch.h"
#include "ops/lora_dropout.h"
#include "ops/qk_norm_rope/qk_norm_rope.h"

namespace hone {

/// What layers keep of N generated sequences: of each layer what its mixer asks for (Mixer::cache).
struct DecoderCache {
  std::vector<std::vector<Tensor>> layers;
  Tensor lengths;  ///< i32 [N], tokens of each sequence before this call
};

/// One call of a model. Everything outlives the tape.
struct Forward {
  const DeviceBatch* batch = nullptr;
  StepMemory step;
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
