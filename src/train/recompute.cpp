#include "train/recompute.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace hone {

const std::vector<std::string>& recompute_levels() {
  static const std::vector<std::string> levels = {"none", "norms", "activations", "experts", "everything"};
  return levels;
}

RecomputePolicy recompute_policy(const std::string& level) {
  const auto& levels = recompute_levels();
  const auto found = std::find(levels.begin(), levels.end(), level);
  if (found == levels.end()) {
    throw UserError(fmt::format("'{}' is not a level of recomputation.{}", level, did_you_mean(level, levels)),
                    "recompute", fmt::format("use auto or one of {}", fmt::join(levels, ", ")));
  }
  const auto index = found - levels.begin();
  RecomputePolicy policy;
  policy.everything = level == "everything";
  if (policy.everything) return policy;
  if (index >= 1) policy.kinds = {"rms_norm", "qk_norm_rope", "latent_heads"};
  if (index >= 2) policy.kinds.push_back("swiglu");
  if (index >= 3) policy.kinds.push_back("moe_gate_up");
  return policy;
}

}  // namespace hone
