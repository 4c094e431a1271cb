// Compares two evaluations: which one is better, and by how much.
#pragma once

#include <cmath>
#include <optional>

namespace hone {

struct BestMetric {
  bool greater_is_better = false;
  double threshold = 0;

  /// Finite, and better than the best so far or the first.
  bool better(double value, const std::optional<double>& best) const {
    if (!std::isfinite(value)) return false;
    return !best || (greater_is_better ? value > *best : value < *best);
  }
  /// better() by more than the threshold: an improvement in the sense of early stopping. The best so far is the best of
  /// all evaluations, so many small steps down do not add up. Source: transformers' EarlyStoppingCallback.
  bool improves(double value, const std::optional<double>& best) const {
    return better(value, best) && (!best || std::abs(value - *best) > threshold);
  }
};

}  // namespace hone
