// The scenarios of fms-acceleration's benchmarks as a grid: `scenarios`, a list of {name, framework_config, arguments}.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config_reader.h"

namespace hone {

/// What the command line of these benchmarks says beside the file.
struct ScenarioSizes {
  std::vector<int64_t> ranks;           ///< numbers of GPUs; empty: 1
  std::optional<int64_t> global_batch;  ///< documents of a step of all ranks
};

/// Whether the tree is such a file.
bool is_scenario_file(const ConfigNode& root);

/// The grid of the file: an axis `scenario`, whose values are "NAME/FRAMEWORK" with the settings of bench step, and the
/// ranks, which share everything (zero_stage 3) as the benchmarks' FSDP does. Lists under arguments are combined.
/// Adds to `notes` what has no effect on a step's time, and combinations that are left out. Throws UserError with the
/// place for names that are not known, and for models without a shape here.
ConfigNode grid_of_scenarios(const ConfigNode& root, const ScenarioSizes& sizes, std::vector<std::string>& notes);

}  // namespace hone
