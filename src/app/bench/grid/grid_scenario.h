// GridScenario: one combination of settings of a grid, and the command that measures it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/bench/grid/grid_keys.h"

namespace hone {

/// Settings by name, in the order in which they were stated first. A value is text, as on the command line.
class GridSettings {
 public:
  /// nullptr: `name` is not stated.
  const std::string* find(std::string_view name) const;
  /// Nothing as `value` removes the setting.
  void put(const std::string& name, const std::optional<std::string>& value);

  auto begin() const { return settings_.begin(); }
  auto end() const { return settings_.end(); }

 private:
  using Setting = std::pair<std::string, std::string>;

  std::vector<Setting> settings_;
};

struct GridScenario {
  GridSettings settings;             ///< names of groups, too: {"setup", "zero3"}
  std::vector<std::string> command;  ///< the words after `hone`

  /// What identifies a scenario in the results: "hone bench step --model …", quoted for a shell.
  std::string command_line() const;
};

/// The scenario of these settings: bench step, under launch for several ranks, with --json -. Settings without effect
/// are left out: zero_stage, shard_size and expert_parallel_size of one rank, lora_r and expert_lora where the mode has
/// none. global_batch becomes micro_batches. Throws UserError at `where` without a model, and for a global_batch that
/// the ranks' batches do not make up.
GridScenario make_scenario(GridSettings settings, const std::vector<GridKey>& keys, const std::string& where);

/// Whether a setting of this name would change what the scenario does: not zero_stage of one rank.
bool has_effect(const GridSettings& settings, const std::string& name, const std::vector<GridKey>& keys);

/// The setting's value, or the one that counts where it is not stated; "" if there is none.
std::string value_of(const GridSettings& settings, const std::string& name, const std::vector<GridKey>& keys);

}  // namespace hone
