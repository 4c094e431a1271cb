// ParameterStore: how several ranks share its parameters.
#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "params/frozen_weights.h"
#include "params/parameter_store.h"
#include "params/payload.h"
#include "params/placement.h"

namespace hone {

namespace {

/// The common properties of a bucket's parameters, as a sort key: order of backward, which visits the last group first;
/// frozen parameters last.
struct BucketKey {
  bool frozen;
  int64_t position;  ///< minus the group's index
  DType dtype, gradient;
  ZeroStage stage;
  const ValueHome* home;
  bool packed, spread;

  auto operator<=>(const BucketKey&) const = default;
};

/// Merges small buckets that shard only state into the next bucket with the same key except the position, at that
/// bucket's place.
std::vector<Bucket> merge_small(std::map<BucketKey, Bucket> buckets, int64_t least_bytes) {
  std::map<BucketKey, Bucket> merged;
  for (auto& [key, bucket] : buckets) {
    const auto small =
        std::find_if(merged.begin(), merged.end(), [&, k = key, one_use = bucket.kind.one_use](const auto& m) {
          const auto& [other, earlier] = m;
          BucketKey same = other;
          same.frozen = k.frozen;
          same.position = k.position;
          return same == k && k.stage <= ZeroStage::kState && !k.home->brought && !k.packed &&
                 earlier.kind.one_use == one_use &&
                 earlier.layout.elements * static_cast<int64_t>(size_of(k.gradient)) < least_bytes;
        });
    if (small == merged.end()) {
      merged.emplace(key, std::move(bucket));
      continue;
    }
    Bucket& whole = merged[key] = std::move(small->second);
    merged.erase(small);
    whole.name = whole.name.substr(0, whole.name.find(" to ")) + " to " + bucket.name;
    whole.parameters.insert(whole.parameters.end(), bucket.parameters.begin(), bucket.parameters.end());
    for (const int64_t offset : bucket.layout.offsets) whole.layout.offsets.push_back(whole.layout.elements + offset);
    whole.layout.elements += bucket.layout.elements;
  }
  std::vector<Bucket> list;
  for (auto& [key, bucket] : merged) list.push_back(std::move(bucket));
  return list;
}

int64_t aligned(int64_t elements, int64_t alignment) { return (elements + alignment - 1) / alignment * alignment; }

bool is_large_in_layer(const Parameter& p, const RankShare& share) {
  return p.group()->layer() >= 0 && p.shape().numel() >= share.least_sharded_elements;
}

bool stays_in_files(const Parameter& p, const RankShare& share) {
  return share.frozen_in_files && !p.trainable() && p.spec().kind != ParameterKind::kLora &&
         is_large_in_layer(p, share) && p.value().format().movable();
}

/// The stage of a parameter. At most the state of parameters outside the layers, since a head writes its gradient in
/// forward, and a tied embedding has two uses. Nothing of parameters on the host.
ZeroStage stage_of(const Parameter& p, const RankShare& share, bool adapters) {
  if (share.shard_ranks() == 1 || p.share().spread() || p.value().home().host_computed) return ZeroStage::kNone;
  const bool large = is_large_in_layer(p, share);
  if (!p.trainable()) {
    const bool sharded =
        share.stage == ZeroStage::kValues && large && p.value().format().movable() && !stays_in_files(p, share);
    return sharded ? ZeroStage::kValues : ZeroStage::kNone;
  }
  if (adapters && p.spec().kind != ParameterKind::kLora) return ZeroStage::kNone;
  return large ? share.stage : std::min(share.stage, ZeroStage::kState);
}

/// `count` of the layers, evenly spread over them (is_chosen_layer).
std::set<int> chosen_of(const std::set<int>& layers, int64_t count) {
  std::set<int> chosen;
  int64_t index = 0;
  for (const int layer : layers) {
    if (is_chosen_layer(index++, static_cast<int64_t>(layers.size()), count)) chosen.insert(layer);
  }
  return chosen;
}

/// The layers whose routed experts are not on the device.
struct ExpertLayers {
  std::set<int> on_host;  ///< computed there
  std::set<int> in_host;  ///< brought for each use

  ExpertLayers(const ParameterStore& store, const RankShare& share) {
    std::set<int> others = layers_with_experts(store);
    on_host = chosen_of(others, share.host_expert_layers);
    for (const int layer : on_host) others.erase(layer);
    in_host = chosen_of(others, share.offload.values() ? share.offload.expert_layers : 0);
  }
};

/// Not adapters whose state ranks share: each hands what it has stepped to the others on the device.
bool is_offloaded(const Parameter& p, const RankShare& share, ZeroStage stage, const ExpertLayers& layers) {
  const bool handed_on = stage != ZeroStage::kNone && stage != ZeroStage::kValues;
  const bool of_params = share.offload.params && !(p.spec().kind == ParameterKind::kLora && handed_on);
  const bool chosen =
      is_experts(p) || (of_params && p.spec().of_experts) ? layers.in_host.contains(p.spec().layer) : of_params;
  return chosen && is_large_in_layer(p, share) && p.value().format().movable();
}

/// The home of values that the device computes with.
const ValueHome& device_home(const Parameter& p, const RankShare& share, ZeroStage stage, bool offloaded) {
  if (stays_in_files(p, share)) return kInFile;
  const bool sharded = stage == ZeroStage::kValues;
  if (offloaded) return sharded ? kOffloadedShard : kOffloaded;
  if (!sharded) return kResident;
  return share.mapping_granularity > 0 ? kMapped : kSharded;
}

/// The home of values that the CPU computes with. An adapter is small, and has its own way to be drawn and read.
const ValueHome& host_home(const Parameter& p, const RankShare& share) {
  const bool shared = share.ranks > 1 && !p.trainable() && p.spec().kind != ParameterKind::kLora;
  return shared ? kHostShared : kHostComputed;
}

/// The nearest end of the matrix around element `at` of the bucket, if its state or its chunk stays whole; else `at`.
int64_t nearest_cut(const Bucket& bucket, int64_t at) {
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    const Parameter& p = *bucket.parameters[i];
    const int64_t begin = bucket.layout.offsets[i], end = begin + aligned(p.local_shape().numel(), Bucket::kAlignment);
    const bool whole = p.value().packed() || (p.trainable() && p.state().formats.whole_matrices);
    if (at < begin || at >= end || !whole) continue;
    const int64_t unit =
        p.value().packed() ? p.spec().matrix().numel() : std::lcm(p.spec().matrix().numel(), Bucket::kAlignment);
    HONE_ASSERT(unit > 0, p.name());
    const int64_t below = begin + (at - begin) / unit * unit, above = std::min(below + unit, end);
    return at - below <= above - at ? below : above;
  }
  return at;
}

std::vector<int64_t> cuts_of(const Bucket& bucket, int ranks) {
  std::vector<int64_t> cuts;
  for (int r = 0; r < ranks; ++r) cuts.push_back(nearest_cut(bucket, bucket.layout.elements / ranks * r));
  cuts.push_back(bucket.layout.elements);
  return cuts;
}

/// Offsets and cuts of a packed bucket in bytes of chunks.
void cut_chunks(Bucket& bucket) {
  Bucket::Layout& layout = bucket.layout;
  int64_t bytes = 0;
  size_t rank = 0;
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    const Parameter& p = *bucket.parameters[i];
    layout.chunk_offsets.push_back(bytes);
    const int64_t matrix = p.spec().matrix().numel(), size = packed_layout(p).bytes;
    const int64_t end = layout.offsets[i] + p.shape().numel();
    for (; rank < layout.cuts.size() && layout.cuts[rank] < end; ++rank) {
      layout.chunk_cuts.push_back(bytes + (layout.cuts[rank] - layout.offsets[i]) / matrix * size);
    }
    bytes += p.shape().numel() / matrix * size;
  }
  layout.chunk_cuts.resize(layout.cuts.size(), bytes);
}

/// Rounds the bucket up so that every rank's part of its values is a multiple of the granularity, unless that would add
/// much, or matrices stay whole.
void cut_for_mapping(Bucket& bucket, const RankShare& share) {
  if (&bucket.home() != &kMapped || bucket.kind.packed) return;
  Bucket::Layout& layout = bucket.layout;
  const auto granule =
      static_cast<int64_t>(share.mapping_granularity / size_of(bucket.parameters.front()->value().dtype()));
  constexpr int64_t kLeast = 4;
  if (layout.elements < kLeast * share.shard_ranks() * granule) return;
  layout.elements = aligned(layout.elements, share.shard_ranks() * std::lcm(granule, Bucket::kAlignment));
  layout.cuts = cuts_of(bucket, share.shard_ranks());
  layout.in_place =
      std::all_of(layout.cuts.begin(), layout.cuts.end(), [&](int64_t cut) { return cut % granule == 0; });
}

/// Gives the groups whose values are brought their slots, by turns.
void number_slots(std::vector<Bucket>& buckets) {
  std::map<LayerHalf, std::map<size_t, std::vector<Bucket*>>> halves;  // by the group's index
  for (Bucket& bucket : buckets) {
    const ParameterGroup& group = *bucket.parameters.front()->group();
    if (bucket.brings_values()) halves[group.half()][group.index()].push_back(&bucket);
  }
  for (const auto& [half, groups] : halves) {
    int turn = 0;
    for (const auto& [index, of_group] : groups) {
      for (Bucket* bucket : of_group) bucket->layout.slot = 2 * static_cast<int>(half) + turn;
      turn = 1 - turn;
    }
  }
}

}  // namespace

void require_shard_size(int64_t shard_size, int64_t ranks, const std::string& where) {
  if (shard_size == 0 || (shard_size > 0 && ranks % shard_size == 0)) return;
  throw UserError(fmt::format("groups of {} ranks do not divide {} ranks", shard_size, ranks), where,
                  "choose a divisor of the number of ranks");
}

void require_expert_ranks(int64_t expert_ranks, int64_t shard_ranks, const std::string& where) {
  if (shard_ranks % expert_ranks == 0) return;
  throw UserError(fmt::format("experts are spread over {} ranks, which do not divide {}", expert_ranks,
                              shard_ranks == 1 ? "one" : fmt::format("the {} that share state", shard_ranks)),
                  where, "choose a divisor of that number");
}

int64_t Bucket::position(size_t i, int64_t element) const {
  if (!kind.packed) return layout.offsets[i] + element;
  const Parameter& p = *parameters[i];
  return layout.chunk_offsets[i] + element / p.spec().matrix().numel() * packed_layout(p).bytes;
}

bool ParameterStore::shares(bool (Bucket::*what)() const) const {
  return std::any_of(buckets_.begin(), buckets_.end(), [&](const Bucket& bucket) { return (bucket.*what)(); });
}

/// Gives this rank's experts to a parameter of experts.
void ParameterStore::spread_over(Parameter& p, const RankShare& share) {
  const bool spread = share.expert_ranks > 1 && p.spec().of_experts;
  p.share_.expert_ranks_ = spread ? share.expert_ranks : 1;
  p.share_.expert_rank_ = spread ? share.expert_rank() : 0;
  p.share_.local_shape_ = p.shape();
  if (!spread) return;
  HONE_ASSERT(p.shape()[0] % share.expert_ranks == 0 && share.shard_ranks() % share.expert_ranks == 0, p.name());
  HONE_ASSERT(!share.offload.values() && p.value().format().movable(), p.name());
  expert_ranks_ = share.expert_ranks;
  expert_rank_ = share.expert_rank();
  p.share_.local_shape_ = {p.shape()[0] / share.expert_ranks};
  for (int i = 1; i < p.shape().rank(); ++i) p.share_.local_shape_.push_back(p.shape()[i]);
}

bool ParameterStore::values_arrived() const {
  return std::none_of(buckets_.begin(), buckets_.end(), [](const Bucket& b) { return b.arrivals->expected(); });
}

void ParameterStore::share_among(const RankShare& share) {
  mapped_.reset();
  shared_.reset();
  expert_ranks_ = 1;
  expert_rank_ = 0;
  buckets_.clear();
  trained_buckets_ = 0;
  bool adapters = false;
  HONE_ASSERT(share.host_expert_layers == 0 || (share.expert_ranks == 1 && !share_layer_gradients_));
  const ExpertLayers layers(*this, share);
  experts_on_host_ = !layers.on_host.empty();
  std::vector<Parameter*> shared;
  for (Parameter& p : parameters_) {
    p.value_.home_ = p.spec().of_experts && layers.on_host.contains(p.spec().layer) ? &host_home(p, share) : &kResident;
    p.value_.filled_here_ = true;
    p.share_.sharded_ = false;
    p.value_.arrivals_.reset();
    p.share_.bucket_ = nullptr;
    p.gradient_.staged_ = share_layer_gradients_ && p.trainable() && p.group() != nullptr && p.group()->layer() >= 0;
    adapters |= p.spec().kind == ParameterKind::kLora;
    spread_over(p, share);
    if (&p.value().home() == &kHostShared) shared.push_back(&p);
  }
  if (!shared.empty()) {
    HONE_ASSERT(share.ranks % share.host_ranks == 0, "every host has as many ranks");
    shared_ = std::make_unique<SharedValues>(shared, share.host_rank(), share.host_ranks);
    for (Parameter* p : shared) p->value_.filled_here_ = shared_->fills(*p);
  }
  offloads_state_ = share.offload.optimizer;
  offloads_trained_ = false;
  if (share.ranks == 1 && !share.offload.values() && !share.frozen_in_files) return;
  HONE_ASSERT(share.ranks == 1 || !share_layer_gradients_, "layers whose gradients take turns cannot be summed later");
  std::map<BucketKey, Bucket> buckets;
  for (Parameter& p : parameters_) {
    HONE_ASSERT(p.group() != nullptr, p.name());
    const ZeroStage stage = stage_of(p, share, adapters);
    if (!p.value().home().host_computed) {
      p.value_.home_ = &device_home(p, share, stage, is_offloaded(p, share, stage, layers));
      p.value_.filled_here_ = p.value().home().memory != ValueHome::Memory::kFile;
    }
    offloads_trained_ |= p.trainable() && p.value().home().offloaded();
    const bool among_ranks = share.ranks > 1 && (p.trainable() || stage != ZeroStage::kNone);
    if (!among_ranks && !p.value().home().brought) continue;
    const BucketKey key{!p.trainable(),
                        -static_cast<int64_t>(p.group()->index()),
                        p.value().dtype(),
                        p.trainable() ? p.state().formats.gradient : p.value().dtype(),
                        stage,
                        &p.value().home(),
                        p.value().packed(),
                        p.share().spread()};
    Bucket& bucket = buckets[key];
    bucket.name = p.group()->name();
    bucket.kind = {.stage = stage,
                   .trained = p.trainable(),
                   .home = &p.value().home(),
                   .packed = p.value().packed(),
                   .spread = p.share().spread(),
                   .one_use = p.spec().kind != ParameterKind::kEmbedding};
    bucket.parameters.push_back(&p);
    bucket.layout.offsets.push_back(bucket.layout.elements);
    bucket.layout.elements += aligned(p.local_shape().numel(), Bucket::kAlignment);
  }
  buckets_ = merge_small(std::move(buckets), share.least_bucket_bytes);
  for (Bucket& bucket : buckets_) {
    const Bucket::Kind& kind = bucket.kind;
    HONE_ASSERT(!kind.home->offloaded() || !kind.trained || kind.stage == ZeroStage::kNone || bucket.shards_values(),
                "values that are gathered after a step are on the device");
    trained_buckets_ += kind.trained && share.ranks > 1 ? 1 : 0;
    bucket.layout.elements = aligned(bucket.layout.elements, share.shard_ranks() * Bucket::kAlignment);
    bucket.layout.cuts = cuts_of(bucket, share.shard_ranks());
    if (kind.packed) cut_chunks(bucket);
    cut_for_mapping(bucket, share);
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      Parameter& p = *bucket.parameters[i];
      p.share_.bucket_ = &bucket;
      p.value_.arrivals_ = bucket.arrivals;
      if (share.ranks > 1) p.gradient_.staged_ = bucket.shards_gradients();
      if (!bucket.sharded()) continue;
      HONE_ASSERT(!p.trainable() || p.state().formats.second_moment != SecondMoment::kFactored,
                  "factors belong to whole matrices");
      p.share_.bucket_offset_ = bucket.layout.offsets[i];
      p.share_.sharded_ = true;
      p.share_.rank_ = share.shard_rank();
    }
  }
  number_slots(buckets_);
  if (share.mapping_granularity > 0 && shards_values()) {
    mapped_ = std::make_unique<MappedValues>(buckets_, share.shard_rank(), share.mapping_granularity);
  }
}

}  // namespace hone
