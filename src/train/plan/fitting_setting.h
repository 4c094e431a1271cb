// The settings that lower the memory of a run, in the order of what they cost in speed.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "config/run_config.h"

namespace hone {

/// The memory in which a run is to fit.
struct MemoryRoom {
  bool host_is_apart = false;  ///< the device has memory of its own, not the host's
  bool int8_experts = false;   ///< frozen experts can be held in 8 bits (params/frozen_weights.h)
  /// Whether a run of this configuration fits at a level of recomputation (train/plan/recompute.h).
  std::function<bool(const RunConfig& config, const std::string& level)> fits;
  bool experts = false;  ///< the model has routed experts, which can take tokens in tiles or be on the CPU
  bool mlps = false;     ///< it has dense MLPs or shared experts, which can take tokens in tiles
};

/// The fastest change with which the run fits, as keys and values: "zero_stage: 3 and gradient_checkpointing: true". In
/// this order: less kept of the forward pass; smaller micro-batches, of which more make the same step; MLPs or experts
/// in tiles of tokens; a higher zero_stage, with several ranks; host memory for activations and the optimizer; under
/// LoRA, frozen experts in 8 bits or a frozen base in nf4, which round them; host memory for the weights of layers;
/// experts on the CPU. Then the same with one sample a micro-batch. None if nothing of these suffices.
std::optional<std::string> fitting_setting(const RunConfig& config, const MemoryRoom& room);

/// Halves the micro-batch and doubles their number. False if it is one sample, or the optimizer steps in backward.
bool halve_batch(RunConfig& config);

}  // namespace hone
