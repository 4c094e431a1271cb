// Whether a run fits in its device's memory, and how much of the forward pass to compute again so that it does.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/stream.h"
#include "train/engine.h"

namespace hone {

/// What a plan may take on a device.
struct MemoryLimit {
  int64_t comfortable = 0;  ///< up to here no activation is computed again
  int64_t most = 0;         ///< beyond it the run does not start
  /// Of host memory, for what is offloaded; none: that is in the device's, which is the host's.
  std::optional<int64_t> host = std::numeric_limits<int64_t>::max();

  /// Of the device's memory.
  int64_t needs(const MemoryPlan& plan) const { return plan.total() + (host ? 0 : plan.host()); }
  bool fits(const MemoryPlan& plan) const { return holds(plan, most); }
  bool fits_comfortably(const MemoryPlan& plan) const { return holds(plan, comfortable); }

 private:
  bool holds(const MemoryPlan& plan, int64_t bytes) const {
    return needs(plan) <= bytes && (!host || plan.host() <= *host);
  }
};

/// Of what is free now. On a GPU, what its libraries hold has been taken, and room is left for what they and the
/// driver load with the first kernels.
MemoryLimit memory_limit(Stream& stream);

/// What CUDA takes on a GPU besides a plan: context, libraries and their workspaces, kernels. Measured on an H200 after
/// steps of a Qwen3-MoE: 1.25 GB.
inline constexpr int64_t kCudaFixedBytes = int64_t{1300} << 20;

/// The levels of recomputation (train/recompute.h) that gradient_checkpointing allows, the fastest first: all for auto,
/// else one.
std::vector<std::string> allowed_levels(const std::string& gradient_checkpointing);

/// The value of gradient_checkpointing that means a level.
std::string level_setting(const std::string& level);

struct FittingLevel {
  std::string level;
  MemoryPlan plan;
  bool fits = false;
};

/// The first level whose plan fits, comfortably where there is a smaller one to try; the last one if none does.
FittingLevel choose_level(const std::vector<std::string>& levels, const MemoryLimit& limit,
                          const std::function<MemoryPlan(const RecomputePolicy&)>& plan);
/// The same of an engine, which then has the level's policy.
FittingLevel choose_level(const std::vector<std::string>& levels, const MemoryLimit& limit, Engine& engine);

/// That `what` does not fit, and what to do about it.
UserError does_not_fit(const std::string& what, const MemoryPlan& plan, const MemoryLimit& limit,
                       const std::string& fix);

}  // namespace hone
