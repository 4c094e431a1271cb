// LossResult: losses as a step or an evaluation measures them.
#pragma once

#include <cstdint>
#include <vector>

namespace hone {

/// Loss over the supervised tokens of one data set.
struct DatasetLoss {
  double loss = 0;    ///< Σ w·nll / Σ w; 0 without tokens
  double weight = 0;  ///< Σ w
};

/// Means over the supervised tokens of an optimizer step or of an evaluation.
struct LossResult {
  double loss = 0;      ///< Σ w·l / Σ w; in training with label_smoothing
  double aux_loss = 0;  ///< not scaled by its coefficient; token-weighted mean over micro-batches
  double mean_token_accuracy = 0;
  double entropy = 0;
  int64_t tokens = 0, supervised = 0;
  std::vector<DatasetLoss> datasets = {};  ///< by index of the data set, if measured
};

}  // namespace hone
