// The keys of a scenario: the options of hone bench step, and those that only a grid has.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace hone {

inline constexpr const char* kRanksKey = "ranks";               ///< processes that train together
inline constexpr const char* kGlobalBatchKey = "global_batch";  ///< documents of a step, of all ranks together

struct GridKey {
  std::string name;         ///< zero_stage
  std::string flag;         ///< --zero-stage; "" for ranks and global_batch
  bool is_switch = false;   ///< true: the flag is there; false: it is not
  bool takes_list = false;  ///< several values, with commas
  std::string usual = {};   ///< the value where a scenario states none; "": none, or it depends

  /// Whether its value is a whole number that the grid itself uses.
  bool is_count() const { return name == kRanksKey || name == kGlobalBatchKey; }
};

/// The keys for the options of `step`, the verb hone bench step, in its order, then ranks and global_batch. Without
/// --json and --profile, which are not settings.
std::vector<GridKey> grid_keys(const CLI::App& step);

/// The key called `name` (dashes are read as underscores), or nullptr.
const GridKey* find_grid_key(const std::vector<GridKey>& keys, std::string_view name);

}  // namespace hone
