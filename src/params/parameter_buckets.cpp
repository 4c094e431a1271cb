// ParameterStore: how several ranks share its parameters.
#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "params/parameter_store.h"

namespace hone {

namespace {

/// Whether backward has finished its gradient before it comes to the layer's mixer.
bool in_feed_forward(const Parameter& parameter) {
  switch (parameter.kind()) {
    case ParameterKind::kMlp:
    case ParameterKind::kRouter:
    case ParameterKind::kExpertsGateUp:
    case ParameterKind::kExpertsDown:
      return true;
    default:
      return false;
  }
}

/// Backward comes to the head first, then to the last layer; the embedding, which may be the head too, is the last.
struct BackwardPlace {
  int position;
  std::string name;
};

BackwardPlace backward_place(const Parameter& parameter, int layers) {
  if (parameter.layer() < 0) {
    const bool embedding = parameter.kind() == ParameterKind::kEmbedding;
    return {embedding ? 2 * layers + 1 : 0, embedding ? "embedding" : "head"};
  }
  const bool first = in_feed_forward(parameter);
  return {2 * (layers - parameter.layer()) - (first ? 1 : 0),
          fmt::format("layer {}{}", parameter.layer(), first ? " feed-forward" : "")};
}

/// What parameters of a bucket have in common. In the order of backward.
struct BucketKey {
  int position;
  DType dtype, gradient;
  bool sharded;

  auto operator<=>(const BucketKey&) const = default;
};

/// Small buckets become one with the next that they have all but the position in common with, at its place.
std::vector<Bucket> merge_small(std::map<BucketKey, Bucket> buckets, int64_t least_bytes) {
  std::map<BucketKey, Bucket> merged;
  for (auto& [key, bucket] : buckets) {
    const auto small =
        std::find_if(merged.begin(), merged.end(), [&, k = key, one_use = bucket.one_use](const auto& m) {
          const auto& [other, earlier] = m;
          return BucketKey{k.position, other.dtype, other.gradient, other.sharded} == k && earlier.one_use == one_use &&
                 earlier.elements * static_cast<int64_t>(size_of(k.gradient)) < least_bytes;
        });
    if (small == merged.end()) {
      merged.emplace(key, std::move(bucket));
      continue;
    }
    Bucket& whole = merged[key] = std::move(small->second);
    merged.erase(small);
    whole.name = whole.name.substr(0, whole.name.find(" to ")) + " to " + bucket.name;
    whole.parameters.insert(whole.parameters.end(), bucket.parameters.begin(), bucket.parameters.end());
    for (const int64_t offset : bucket.offsets) whole.offsets.push_back(whole.elements + offset);
    whole.elements += bucket.elements;
  }
  std::vector<Bucket> list;
  for (auto& [key, bucket] : merged) list.push_back(std::move(bucket));
  return list;
}

int64_t aligned(int64_t elements, int64_t alignment) { return (elements + alignment - 1) / alignment * alignment; }

}  // namespace

bool ParameterStore::shards_state() const {
  return std::any_of(buckets_.begin(), buckets_.end(), [](const Bucket& bucket) { return bucket.sharded; });
}

bool ParameterStore::values_arrived() const {
  return std::none_of(buckets_.begin(), buckets_.end(), [](const Bucket& b) { return b.arrivals->expected(); });
}

void ParameterStore::share_among(const RankShare& share) {
  buckets_.clear();
  int layers = 0;
  bool adapters = false;
  for (Parameter& p : parameters_) {
    p.elements_per_rank_ = 0;
    p.arrivals_.reset();
    layers = std::max(layers, p.layer() + 1);
    adapters |= p.kind() == ParameterKind::kLora;
  }
  if (share.ranks == 1) return;
  HONE_ASSERT(!share_layer_gradients_, "layers whose gradients take turns cannot be summed later");
  std::map<BucketKey, Bucket> buckets;
  for (Parameter* p : trainable()) {
    const auto [position, name] = backward_place(*p, layers);
    const bool sharded = share.shards_state && (!adapters || p->kind() == ParameterKind::kLora);
    Bucket& bucket = buckets[{position, p->dtype(), p->formats().gradient, sharded}];
    bucket.name = name;
    bucket.one_use = position <= 2 * layers;
    bucket.sharded = sharded;
    bucket.parameters.push_back(p);
    bucket.offsets.push_back(bucket.elements);
    bucket.elements += aligned(p->shape().numel(), Bucket::kAlignment);
  }
  buckets_ = merge_small(std::move(buckets), share.least_bucket_bytes);
  for (Bucket& bucket : buckets_) {
    bucket.elements = aligned(bucket.elements, share.ranks * Bucket::kAlignment);
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      Parameter& p = *bucket.parameters[i];
      p.arrivals_ = bucket.arrivals;
      if (!bucket.sharded) continue;
      HONE_ASSERT(p.formats().second_moment != SecondMoment::kFactored, "factors belong to whole matrices");
      p.bucket_offset_ = bucket.offsets[i];
      p.elements_per_rank_ = bucket.elements / share.ranks;
      p.rank_ = share.rank;
    }
  }
}

}  // namespace hone
