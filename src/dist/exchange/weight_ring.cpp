#include "dist/exchange/weight_ring.h"

#include <algorithm>

#include "core/stream/profiler.h"
#include "dist/exchange/bucket_arrival.h"
#include "dist/exchange/bucket_parts.h"

namespace hone {

WeightRing::WeightRing(Communicator* ranks, FetchWay way, const ParameterStore& store, const Placement& placement,
                       Device device)
    : ranks_(ranks),
      way_(way),
      store_(store),
      lane_(device),
      placement_(placement),
      buckets_(placement.groups().size()) {
  for (const Bucket& bucket : store.all_buckets()) {
    if (bucket.brings_values()) buckets_[bucket.parameters.front()->group()->index()].push_back(&bucket);
  }
}

WeightRing::~WeightRing() { settle_values(store_.all_buckets()); }

void WeightRing::acquire(const Context& context, const ParameterGroup& group, Use use) {
  if (!use.reads_values) return;
  if (brings(group)) {
    bring(context, group);
    slot_of(group).used = true;
  }
  // Two groups: recomputation acquires the halves of a layer in forward order, backward in reverse order. It may still
  // need values of this layer that backward has passed.
  constexpr int kAhead = 2;
  const auto count = static_cast<std::ptrdiff_t>(placement_.groups().size());
  const std::ptrdiff_t step = use.backward ? -1 : 1;
  int ahead = 0;
  for (auto next = static_cast<std::ptrdiff_t>(group.index()) + step; next >= 0 && next < count && ahead < kAhead;
       next += step) {
    const ParameterGroup& other = placement_.groups()[static_cast<size_t>(next)];
    if (!brings(other)) continue;
    ++ahead;
    const Slot& slot = slot_of(other);
    const bool has_another = slot.group != nullptr && slot.group != &other;
    const bool is_needed = slot.used || (has_another && slot.group->layer() == group.layer());
    if (!is_needed) bring(context, other);
  }
}

void WeightRing::release(const ParameterGroup& group) {
  if (brings(group)) slot_of(group).used = false;
}

void WeightRing::end_update(const Context& context) {
  for (auto& [index, slot] : slots_) {
    if (slot.group == nullptr) continue;
    const std::vector<const Bucket*>& buckets = buckets_[slot.group->index()];
    if (std::any_of(buckets.begin(), buckets.end(), [](const Bucket* b) { return b->kind.trained; })) slot.stale = true;
  }
  if (fetcher_) fetcher_->end_update(context);
}

void WeightRing::bring(const Context& context, const ParameterGroup& group) {
  Slot& slot = slot_of(group);
  if (slot.group == &group && !slot.stale) return;
  HONE_ASSERT(!slot.used, group.name());
  if (slot.group != nullptr) {  // its arrivals may still be pending
    for (const Bucket* bucket : buckets_[slot.group->index()]) bucket->arrivals->await_on_stream();
  }
  slot.group = &group;
  slot.stale = false;
  for (const Bucket* bucket : buckets_[group.index()]) bring(context, *bucket);
}

void WeightRing::bring(const Context& context, const Bucket& bucket) {
  Stream& stream = context.stream();
  if (bucket.stays_in_files()) return store_.value_reader().bring(stream, bucket);
  if (bucket.home().offloaded()) {
    Tensor own = bucket.values;
    if (bucket.shards_values()) own = elements_of(own, moved_parts_of(bucket)[static_cast<size_t>(ranks_->rank())]);
    lane_.fork(stream);
    const ProfileScope scope(stream, lane_.cuda_stream(), OpGroup::kMemoryBound, "from host", bucket.name,
                             static_cast<double>(own.bytes()));
    lane_.copy(stream, own, bucket.own_values);
  }
  if (bucket.shards_values()) {
    if (!fetcher_) fetcher_ = make_fetcher(way_, *ranks_, store_, stream);
    return fetcher_->fetch(context, bucket, bucket.home().offloaded() ? &lane_ : nullptr);
  }
  expect_values<CopyLane>(stream, bucket, {&lane_});
}

}  // namespace hone
