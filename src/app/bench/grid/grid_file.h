// A grid file: the scenarios that hone bench grid measures (docs/benchmarks.md describes the format).
#pragma once

#include <string>
#include <vector>

#include "app/bench/grid/grid_scenario.h"
#include "app/bench/grid/scenario_file.h"
#include "config/config_reader.h"

namespace hone {

/// What memory is counted by in tables and CSV files. The results of bench step always have all of it.
struct GridMemory {
  bool plan = true;    ///< the plan's bytes of the device
  bool device = true;  ///< the driver's bytes in use at the end; on a CPU the largest resident set
  bool host = false;   ///< the plan's bytes of host memory, and the largest resident set of any of the processes
};

struct GridFile {
  std::vector<GridScenario> scenarios;  ///< in the order of the file; each command once
  std::vector<std::string> names;       ///< the settings of all scenarios, in the order of their first statement
  double limit_s = 1800;                ///< seconds of a scenario
  GridMemory memory;
  std::vector<std::string> notes;  ///< what the user should know: an exclusion that excludes nothing
};

/// Reads a YAML or JSON file, also of scenarios (scenario_file.h), whose numbers are `sizes`. Throws UserError
/// (file:line) for what is not a grid: unknown keys (with near names), values of the wrong kind, two axes that state
/// the same key, more than 10,000 combinations, none at all; and for `sizes` beside a grid, which states its own.
GridFile read_grid_file(const std::string& path, const std::vector<GridKey>& keys, const ScenarioSizes& sizes = {});

/// The same from a configuration's tree.
GridFile parse_grid(const ConfigNode& root, const std::vector<GridKey>& keys);

/// "plan", "device", "host" or "none", also several with commas. Throws UserError at `where`.
GridMemory parse_grid_memory(const std::vector<std::string>& words, const std::string& where);

/// Keeps the scenarios that have one of the values of every "KEY=VALUE,VALUE" of `only`. Throws UserError for a text
/// without "=", a name that no scenario has, or if nothing remains.
void keep_only(GridFile& grid, const std::vector<std::string>& only, const std::vector<GridKey>& keys);

}  // namespace hone
