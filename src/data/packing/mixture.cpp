#include "data/packing/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/base/philox.h"

namespace hone {

namespace {

constexpr uint64_t kRounds = 0x726f756e64;  // the use of the seed for the rounds of one data set

std::vector<std::vector<int64_t>> samples_by_dataset(const SampleStore& samples, size_t datasets) {
  std::vector<std::vector<int64_t>> result(datasets);
  for (int64_t i = 0; i < samples.size(); ++i) {
    const auto dataset = static_cast<size_t>(samples[i].dataset);
    HONE_ASSERT(dataset < datasets, "there is a weight for each data set");
    result[dataset].push_back(i);
  }
  return result;
}

/// Appends `count` samples of one data set, from position `begin` of its endless sequence of rounds.
void draw(const std::vector<int64_t>& samples, int64_t begin, int64_t count, const MixtureOptions& options,
          uint64_t dataset, std::vector<int64_t>& drawn) {
  const auto size = std::ssize(samples);
  std::vector<int64_t> order;
  for (int64_t position = begin, round = -1; position < begin + count; ++position) {
    if (position / size != round) {
      round = position / size;
      order = samples;
      const uint64_t key = mix_key(mix_key(mix_key(options.seed, kRounds), dataset), static_cast<uint64_t>(round));
      PhiloxSequence random(key);
      if (options.shuffle) shuffle_with(random, order);
    }
    drawn.push_back(order[static_cast<size_t>(position % size)]);
  }
}

}  // namespace

std::vector<int64_t> quotas(const std::vector<double>& weights, int64_t total) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> result(weights.size(), 0);
  if (!(sum > 0)) return result;
  std::vector<std::pair<double, size_t>> remainders;
  int64_t rest = total;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double exact = static_cast<double>(total) * (weights[i] / sum);
    result[i] = static_cast<int64_t>(exact);
    rest -= result[i];
    if (weights[i] > 0) remainders.emplace_back(exact - std::floor(exact), i);
  }
  std::stable_sort(remainders.begin(), remainders.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t i = 0; rest > 0; i = (i + 1) % remainders.size(), --rest) ++result[remainders[i].second];
  for (size_t i = 0; rest < 0; i = (i + 1) % result.size()) {
    if (result[i] > 0) --result[i], ++rest;
  }
  return result;
}

std::vector<int64_t> mix_epoch(const SampleStore& samples, const MixtureOptions& options, int64_t epoch) {
  std::vector<int64_t> order;
  if (options.weights.empty()) {
    order.resize(static_cast<size_t>(samples.size()));
    std::iota(order.begin(), order.end(), int64_t{0});
    return order;
  }
  const std::vector<std::vector<int64_t>> sets = samples_by_dataset(samples, options.weights.size());
  std::vector<double> weights = options.weights;
  for (size_t i = 0; i < sets.size(); ++i) {
    if (sets[i].empty()) weights[i] = 0;  // all its samples are in the validation split
  }
  const std::vector<int64_t> counts = quotas(weights, samples.size());
  for (size_t i = 0; i < sets.size(); ++i) {
    if (counts[i] > 0) draw(sets[i], epoch * counts[i], counts[i], options, i, order);
  }
  return order;
}

}  // namespace hone
