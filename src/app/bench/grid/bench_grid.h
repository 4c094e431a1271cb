// hone bench grid: measures every scenario of a grid file, each by a process of its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/bench/grid/grid_keys.h"
#include "app/bench/grid/scenario_file.h"

namespace hone {

struct BenchGridOptions {
  std::string file;
  ScenarioSizes sizes;              ///< read from a file of scenarios
  std::string output;               ///< folder of grid.jsonl and grid.csv; "": FILE's name with -grid
  bool dry_run = false;             ///< lists the commands; runs and writes nothing
  std::vector<std::string> only;    ///< KEY=VALUE,VALUE: only scenarios with them
  std::vector<std::string> retry;   ///< statuses of rows to measure again; failed: all but measured; all
  std::vector<std::string> memory;  ///< what memory is counted by; empty: as the file says
  bool force = false;               ///< replace a grid.csv that is not of a grid
  std::string compare;              ///< a grid.jsonl whose tokens per second are compared with
};

/// Runs the scenarios that have no row in grid.jsonl, appends a row for each, and writes grid.csv after each; prints
/// the table. A scenario that fails has a row with its reason, and the next one runs. Returns the exit code: 0; 1 if a
/// scenario was refused, timed out or crashed, or is 5 % slower than `compare`; 75 if a signal stopped it, after ending
/// the running scenario, which then has no row. Throws UserError for a bad file or options, and if another grid
/// writes into the folder.
int run_bench_grid(const BenchGridOptions& options, const std::vector<GridKey>& keys);

}  // namespace hone
