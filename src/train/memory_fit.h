// Checks whether a run fits in its device's memory, and chooses how much of the forward pass backward recomputes.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/stream.h"
#include "dist/control.h"
#include "train/engine.h"

namespace hone {

/// Where the error of a plan that does not fit is: its "where".
inline constexpr const char* kMemoryPlan = "memory plan";

/// Memory limits of a plan on a device.
struct MemoryLimit {
  int64_t comfortable = 0;  ///< up to this size nothing is recomputed
  int64_t most = 0;         ///< above this size the run does not start
  /// Limit of host memory for offloading; none: the device is the host, and both share one memory.
  std::optional<int64_t> host = std::numeric_limits<int64_t>::max();

  /// Bytes of device memory that a plan needs.
  int64_t needs(const MemoryPlan& plan) const { return plan.total() + (host ? 0 : plan.host()); }
  bool fits(const MemoryPlan& plan) const { return holds(plan, most); }
  bool fits_comfortably(const MemoryPlan& plan) const { return holds(plan, comfortable); }

 private:
  bool holds(const MemoryPlan& plan, int64_t bytes) const {
    return needs(plan) <= bytes && (!host || plan.host() <= *host);
  }
};

/// Limits from the memory that is free now. On a GPU, CUDA's context already exists; memory is reserved for what the
/// libraries and the driver load with the first kernels.
MemoryLimit memory_limit(Stream& stream);

/// The limit of the rank with the least memory, of ranks that share their hosts' memory, `sharing` of them this host's.
/// Collective.
MemoryLimit least_of_ranks(MemoryLimit limit, Device device, int sharing, Control& ranks);

/// Memory that CUDA takes on a GPU in addition to a plan: context, libraries and their workspaces, kernels. Measured on
/// an H200 after steps of a Qwen3-MoE: 1.25 GB.
inline constexpr int64_t kCudaFixedBytes = int64_t{1300} << 20;

/// The levels of recomputation (train/recompute.h) that gradient_checkpointing allows, fastest first: all for auto,
/// else one.
std::vector<std::string> allowed_levels(const std::string& gradient_checkpointing);

/// The value of gradient_checkpointing that selects a level.
std::string level_setting(const std::string& level);

struct FittingLevel {
  std::string level;
  MemoryPlan plan;
  bool fits = false;
};

/// The first level whose plan fits, comfortably unless it is the last; the last level if none fits.
FittingLevel choose_level(const std::vector<std::string>& levels, const MemoryLimit& limit,
                          const std::function<MemoryPlan(const RecomputePolicy&)>& plan);
/// As above, with plans of an engine, which is left with the policy of the chosen level.
FittingLevel choose_level(const std::vector<std::string>& levels, const MemoryLimit& limit, Engine& engine);

/// Error: `what` does not fit in memory, with advice.
UserError does_not_fit(const std::string& what, const MemoryPlan& plan, const MemoryLimit& limit,
                       const std::string& fix);

}  // namespace hone
