// Mixing: which samples an epoch has, and in which order.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/philox.h"
#include "data/sample_store.h"

namespace hone {

struct MixtureOptions {
  bool shuffle = true;
  uint64_t seed = 42;
  /// Shares of the data sets by SampleView::dataset, in relation to each other; empty: every epoch has each sample
  /// once.
  std::vector<double> weights = {};
};

/// The samples of an epoch, for the loader to shuffle as a whole: samples.size() indices, a pure function of
/// (samples, options, epoch).
///
/// Without weights each sample once, in order. With weights w the data set d gives
/// samples.size() · w[d] / Σw of them (rounded by largest remainder, Σ over the sets that have samples): a larger share
/// than it has samples repeats some, a smaller one leaves some out. Each set goes through all its samples, in an order
/// that is new each time (its own without shuffle), before one comes again, and goes on in the next epoch where the
/// last one stopped. The sets follow each other.
std::vector<int64_t> mix_epoch(const SampleStore& samples, const MixtureOptions& options, int64_t epoch);

/// How many of `total` samples each share is; Σ is `total` unless all weights are 0. By largest remainder, the first of
/// equals first.
std::vector<int64_t> quotas(const std::vector<double>& weights, int64_t total);

// Random orders.

/// Fisher-Yates.
void shuffle_with(PhiloxSequence& random, auto& items) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.below(i)]);
}

}  // namespace hone
