// What cpu_offload: auto offloads: the parts of a run that are large in its memory plan.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "config/run_options.h"
#include "train/plan/memory_fit.h"

namespace hone {

/// Whether the run leaves it to the plan what is offloaded.
bool chooses_offload(const RunConfig& config);

/// The configuration with these parts for auto; others that it has stay.
RunConfig with_offload(RunConfig config, const std::vector<OffloadPart>& parts);

struct OffloadChoice {
  std::vector<OffloadPart> parts;  ///< in the order of offload_parts(); empty: nothing
  std::string line;                ///< what was chosen and why, for the log
};

/// The memory plan of a configuration with what is recomputed.
using PlanOfConfig = std::function<MemoryPlan(const RunConfig& config, const RecomputePolicy& recompute)>;

/// Chooses among optimizer, params and activations: the part that saves most of the device's memory, and further ones,
/// the larger first, until the run fits. Nothing on a CPU, whose memory is the host's, and in an evaluation that fits.
OffloadChoice choose_offload(const RunConfig& config, const MemoryLimit& limit, RunUse use, const PlanOfConfig& plan);

}  // namespace hone
