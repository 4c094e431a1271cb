// RouterRule: how the scores of experts become a choice and weights. Model files fill it from config.json.
#pragma once

#include <cstdint>

namespace hone {

enum class RouterScores {
  kSoftmax,  ///< a distribution over all experts
  kSigmoid,  ///< each expert by itself (DeepSeek-V3)
};

/// The score of a group of experts for a token.
enum class GroupScore {
  kLargest,  ///< of its experts' c (DeepSeek-V2)
  kTopTwo,   ///< the sum of the two largest (DeepSeek-V3): for sigmoids only, with at least two experts
};

struct RouterRule {
  RouterScores scores = RouterScores::kSoftmax;
  bool normalise = true;  ///< norm_topk_prob
  float scale = 1.0f;     ///< routed_scaling_factor
  /// Experts form `groups` runs of equal length; a token may use `kept_groups` of them (n_group, topk_group).
  int64_t groups = 1, kept_groups = 1;
  GroupScore group_score = GroupScore::kLargest;
};

/// The most groups that a router has.
inline constexpr int64_t kMaxRouterGroups = 32;

/// Added to the sum that weights are divided by: matters only if every chosen sigmoid is 0 in float32.
inline constexpr float kRouterEpsilon = 1e-20f;

}  // namespace hone
