#include "app/bench/grid/grid_keys.h"

#include <CLI/CLI.hpp>

#include <algorithm>

#include "app/cli.h"
#include "config/schema.h"

namespace hone {

std::vector<GridKey> grid_keys(const CLI::App& step) {
  std::vector<GridKey> keys;
  for (const CLI::Option* option : step.get_options()) {
    const std::string& flag = option->get_lnames().front();
    if (flag == "help" || flag == "force" || is_output(*option)) continue;
    const bool is_switch = option->get_items_expected_max() == 0;
    keys.push_back({.name = config_name(flag),
                    .flag = "--" + flag,
                    .is_switch = is_switch,
                    .takes_list = option->get_delimiter() != '\0',
                    .usual = is_switch ? "false" : option->get_default_str()});
  }
  keys.push_back({.name = kRanksKey, .flag = {}, .usual = "1"});
  keys.push_back({.name = kGlobalBatchKey, .flag = {}});
  return keys;
}

const GridKey* find_grid_key(const std::vector<GridKey>& keys, std::string_view name) {
  const std::string spelled = config_name(std::string(name));
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const GridKey& key) { return key.name == spelled; });
  return found == keys.end() ? nullptr : &*found;
}

}  // namespace hone
