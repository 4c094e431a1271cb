// What packing a frozen base costs: the loss of a run's first micro-batch on the packed base and on the dense one, and
// what it gains to leave a group of weights dense.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/plan/planned_run.h"

namespace hone {

/// Losses above this share over that of the dense base are warned of. FP8 costs about as much on a released model that
/// is rounded to 4 bits already, the hardest case measured (docs/precision.md): with more, 8 bits would do better.
inline constexpr double kDearBase = 0.02;

/// Means over the supervised tokens of the micro-batch.
struct BaseCost {
  double packed = 0, dense = 0;
  std::string formats;  ///< "nf4", "nf4, experts int8"

  /// The difference as a share of the loss on the dense base.
  double share() const { return packed / dense - 1; }
  bool is_dear() const { return !(share() <= kDearBase); }
};

/// A group of packed weights that is left dense.
struct KeptGroup {
  std::string setting;               ///< as the configuration states it: "base_weight_keep: ['re:\.self_attn\.']"
  std::vector<std::string> weights;  ///< names of parameters
  double loss = 0;                   ///< the micro-batch's, if measured
  int64_t bytes = 0;                 ///< more memory for weights, on all devices of this rank
};

/// The groups of a run's packed weights, unmeasured: those with the same place in their layers ("self_attn", "mlp",
/// "mlp.experts"), and the first and the last layer. None that has all packed weights, or the same as another.
std::vector<KeptGroup> groups_of_base(const DescribedRun& run);

/// The line of the log: "first batch: loss 3.4120 on the packed base (nf4), 3.0180 on the dense one: +13.1 %", with the
/// way out where the base is dear.
std::string base_cost_text(const BaseCost& cost, const RunConfig& config);
/// What leaving groups dense gains, the best first, without those that gain little; nothing without groups.
std::vector<std::string> kept_group_texts(const BaseCost& cost, std::vector<KeptGroup> groups);

/// Measures and logs what packing costs, with models of its own that are freed again: nothing of the run changes.
/// Before the weights of `planned` are loaded. None where nothing is packed that the files have more precisely, where
/// the dense base does not fit in memory, even a layer at a time, and for a run (`tries`: a dry run) of a checkpoint so
/// large that reading it twice takes long. A dry run of a dear base also measures the groups. Collective.
std::optional<BaseCost> measure_base_cost(const PlannedRun& planned, bool tries);

}  // namespace hone
