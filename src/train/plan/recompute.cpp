#include "train/plan/recompute.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"

namespace hone {

/// Same order as RecomputeLevel.
const std::vector<std::string>& recompute_levels() {
  static const std::vector<std::string> levels = {"none",      "norms", "activations", "experts", "all_but_attention",
                                                  "everything"};
  return levels;
}

RecomputePolicy recompute_policy(const std::string& level) {
  const auto& levels = recompute_levels();
  const auto found = std::find(levels.begin(), levels.end(), level);
  if (found == levels.end()) {
    throw UserError(fmt::format("'{}' is not a level of recomputation.{}", level, did_you_mean(level, levels)),
                    "recompute", fmt::format("use auto or one of {}", fmt::join(levels, ", ")));
  }
  return {static_cast<RecomputeLevel>(found - levels.begin())};
}

}  // namespace hone
