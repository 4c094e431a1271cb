// Mixing: the samples of an epoch, and their order.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/philox.h"
#include "data/packing/sample_store.h"

namespace hone {

struct MixtureOptions {
  bool shuffle = true;
  uint64_t seed = 42;
  /// Relative weights of the data sets by SampleView::dataset; empty: every epoch contains each sample once.
  std::vector<double> weights = {};
};

/// The samples of an epoch before shuffling: samples.size() indices, a pure function of (samples, options, epoch).
/// Without weights each sample once, in order. With weights w, data set d gives samples.size() · w[d] / Σw of them
/// (rounded by largest remainder; Σ over the data sets that have samples): samples repeat or are omitted if this
/// differs from the size of the data set. A data set gives all its samples before one repeats, in a new order each time
/// (without shuffle in their own order), and continues in the next epoch at its last position. The data sets follow
/// each other.
std::vector<int64_t> mix_epoch(const SampleStore& samples, const MixtureOptions& options, int64_t epoch);

/// Splits `total` samples by `weights`, by largest remainder; ties go to the first. Σ is `total` unless all weights are
/// 0.
std::vector<int64_t> quotas(const std::vector<double>& weights, int64_t total);

// Random orders.

/// Fisher-Yates shuffle.
void shuffle_with(PhiloxSequence& random, auto& items) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.below(i)]);
}

}  // namespace hone
