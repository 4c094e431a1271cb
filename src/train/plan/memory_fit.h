// Checks whether a run fits in its device's memory, and chooses how much of the forward pass backward recomputes.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "config/choices.h"
#include "core/cuda/gpu_models.h"
#include "core/stream/stream.h"
#include "dist/control/control.h"
#include "train/step/engine.h"

namespace hone {

/// Where the error of a plan that does not fit is: its "where".
inline constexpr const char* kMemoryPlan = "memory plan";

/// Memory limits of a plan on a device.
struct MemoryLimit {
  int64_t comfortable = 0;  ///< up to this size nothing is recomputed
  int64_t most = 0;         ///< above this size the run does not start
  /// Limit of host memory for offloading; none: the device is the host, and both share one memory.
  std::optional<int64_t> host = std::numeric_limits<int64_t>::max();
  /// The part of `host` that a run with experts there leaves to the host's other programs, unless it needs it to start.
  int64_t host_margin = 0;
  /// Whose data sheet predicts the times of plans (train/plan/predicted_time.h); none: they are not predicted.
  std::optional<GpuModel> gpu = {};
  /// Whether CUDA's context and the communicators exist, so that of their memory only the rest counts.
  bool initialised = true;

  /// Bytes of device memory that a plan needs.
  int64_t needs(const MemoryPlan& plan) const {
    return plan.total() + (host ? 0 : plan.host()) + (initialised ? plan.libraries.later : plan.libraries.all);
  }
  /// Bytes that are there for a plan and all memory of its libraries.
  int64_t available(const MemoryPlan& plan) const {
    return most + (initialised ? plan.libraries.all - plan.libraries.later : 0);
  }
  bool fits(const MemoryPlan& plan) const { return needs(plan) <= most && host_suffices(plan, 0); }
  bool fits_device_comfortably(const MemoryPlan& plan) const { return needs(plan) <= comfortable; }
  bool fits_host_comfortably(const MemoryPlan& plan) const {
    return host_suffices(plan, plan.experts_on_host > 0 ? host_margin : 0);
  }

 private:
  bool host_suffices(const MemoryPlan& plan, int64_t margin) const { return !host || plan.host() <= *host - margin; }
};

/// Limits from the memory that is free now. On a GPU, CUDA's context already exists.
MemoryLimit memory_limit(Stream& stream);

/// The limit of the rank with the least memory, of ranks that share their hosts' memory, `sharing` of them this host's.
/// Collective.
MemoryLimit least_of_ranks(MemoryLimit limit, Device device, int sharing, Control& ranks);

/// The levels of recomputation (train/plan/recompute.h) that gradient_checkpointing allows, fastest first: all for
/// auto, else one.
std::vector<std::string> allowed_levels(const Checkpointing& gradient_checkpointing);

/// The value of gradient_checkpointing that selects a level.
std::string level_setting(const std::string& level);

struct FittingLevel {
  std::string level;
  MemoryPlan plan;
  bool fits = false;
  bool on_host = false;  ///< recomputes experts on the host, too (RecomputePolicy)
  bool by_time = false;  ///< a level that recomputes less fits, too, but its copies to host memory take longer

  RecomputePolicy policy() const;
};

/// The first level whose plan fits, comfortably unless it is the last; the last level if none fits. Where activations
/// are offloaded, of those that fit the fastest one, if times are predicted. What experts on the host keep is
/// recomputed, too, if it is the host's memory that does not suffice comfortably, at the levels that recompute experts.
FittingLevel choose_level(const std::vector<std::string>& levels, const MemoryLimit& limit,
                          const std::function<MemoryPlan(const RecomputePolicy&)>& plan);
/// As above, with plans of an engine, which is left with the policy of the chosen level.
FittingLevel choose_level(const std::vector<std::string>& levels, const MemoryLimit& limit, Engine& engine);

/// Whether a run fits at a level, with or without recomputation of experts on the host.
bool fits_at(const std::string& level, const MemoryLimit& limit,
             const std::function<MemoryPlan(const RecomputePolicy&)>& plan);

/// What is recomputed, for the memory table: "kept", "recomputed in backward, experts on the CPU too".
std::string level_note(const std::string& level, bool on_host);

/// Error: `what` does not fit in memory, with advice.
UserError does_not_fit(const std::string& what, const MemoryPlan& plan, const MemoryLimit& limit,
                       const std::string& fix);

}  // namespace hone
