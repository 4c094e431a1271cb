#include "data/packing/micro_batch.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/base/error.h"

namespace hone {

int64_t StepData::tokens() const {
  int64_t n = 0;
  for (const MicroBatch& batch : micro_batches) n += batch.tokens();
  return n;
}

int64_t StepData::supervised() const {
  int64_t n = 0;
  for (const MicroBatch& batch : micro_batches) n += batch.supervised();
  return n;
}

double StepData::loss_weight() const {
  double sum = 0;
  for (const MicroBatch& batch : micro_batches)
    sum = std::accumulate(batch.loss_weights.begin(), batch.loss_weights.end(), sum);
  return sum;
}

namespace {

/// Packs samples [begin, end).
void pack_window(std::span<const int64_t> lengths, int64_t begin, int64_t end, const PackLimits& limits,
                 std::vector<std::vector<int64_t>>& packs) {
  std::vector<int64_t> order(static_cast<size_t>(end - begin));
  std::iota(order.begin(), order.end(), begin);
  const auto length = [&](int64_t i) { return lengths[static_cast<size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return length(a) > length(b); });
  std::vector<std::vector<int64_t>> window;
  std::set<std::pair<int64_t, size_t>> room;  // (free tokens, pack)
  for (int64_t i : order) {
    HONE_ASSERT(length(i) <= limits.max_tokens, "a sample is longer than a pack");
    const auto fit = room.lower_bound({length(i), 0});
    size_t pack = window.size();
    int64_t free = limits.max_tokens;
    if (fit != room.end()) {
      free = fit->first;
      pack = fit->second;
      room.erase(fit);
    } else {
      window.emplace_back();
    }
    window[pack].push_back(i);
    if (static_cast<int64_t>(window[pack].size()) < limits.max_documents) room.insert({free - length(i), pack});
  }
  for (std::vector<int64_t>& pack : window) std::sort(pack.begin(), pack.end());
  std::sort(window.begin(), window.end());
  std::move(window.begin(), window.end(), std::back_inserter(packs));
}

}  // namespace

std::vector<std::vector<int64_t>> pack_best_fit(std::span<const int64_t> lengths, const PackLimits& limits,
                                                int64_t window) {
  std::vector<std::vector<int64_t>> packs;
  const auto count = static_cast<int64_t>(lengths.size());
  for (int64_t begin = 0; begin < count; begin += window) {
    pack_window(lengths, begin, std::min(count, begin + window), limits, packs);
  }
  return packs;
}

std::vector<std::vector<int64_t>> pack_in_order(int64_t samples, int64_t per_pack) {
  std::vector<std::vector<int64_t>> packs;
  for (int64_t begin = 0; begin < samples; begin += per_pack) {
    packs.emplace_back();
    for (int64_t i = begin; i < std::min(samples, begin + per_pack); ++i) packs.back().push_back(i);
  }
  return packs;
}

}  // namespace hone
