// Helpers of the tests of grids.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "app/bench/grid/grid_file.h"
#include "app/verbs.h"

namespace hone {

/// The keys as the program has them.
inline std::vector<GridKey> step_keys() {
  CLI::App app;
  Action action;
  add_bench(app, action);
  return grid_keys(*app.get_subcommand("bench")->get_subcommand("step"));
}

inline GridFile grid_of(const std::string& text) {
  return parse_grid(parse_config_text(text, "grid.yaml"), step_keys());
}

inline std::vector<std::string> commands_of(const GridFile& grid) {
  std::vector<std::string> commands;
  for (const GridScenario& scenario : grid.scenarios) commands.push_back(scenario.command_line());
  return commands;
}

}  // namespace hone
