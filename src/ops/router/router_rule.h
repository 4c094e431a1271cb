// RouterRule: how scores of experts determine the choice and the weights. Filled from config.json.
#pragma once

#include <cstdint>

namespace hone {

enum class RouterScores {
  kSoftmax,  ///< a distribution over all experts
  kSigmoid,  ///< each expert independently (DeepSeek-V3)
};

/// The score of a group of experts for a token.
enum class GroupScore {
  kLargest,  ///< the largest c of its experts (DeepSeek-V2)
  kTopTwo,   ///< the sum of the two largest (DeepSeek-V3), with at least two experts
};

struct RouterRule {
  RouterScores scores = RouterScores::kSoftmax;
  bool normalise = true;  ///< norm_topk_prob
  float scale = 1.0f;     ///< routed_scaling_factor
  float least_sum = 0;    ///< the sum that divides the weights is at least this (moe_norm_min)
  /// Experts form `groups` runs of equal length; a token may use `kept_groups` of them (n_group, topk_group).
  int64_t groups = 1, kept_groups = 1;
  GroupScore group_score = GroupScore::kLargest;

  bool operator==(const RouterRule&) const = default;
};

/// Whether experts are chosen by their scores; else by logits, whose order is the same.
inline bool chooses_by_scores(const RouterRule& rule, bool biased) {
  return rule.scores == RouterScores::kSigmoid || biased || rule.group_score == GroupScore::kTopTwo;
}

/// The maximum number of groups of a router.
inline constexpr int64_t kMaxRouterGroups = 32;

/// Added to the sum that divides the weights: only matters if every chosen sigmoid is 0 in float32.
inline constexpr float kRouterEpsilon = 1e-20f;

}  // namespace hone
