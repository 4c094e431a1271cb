#include "dist/weight_ring.h"

#include <algorithm>

#include "core/profiler.h"
#include "dist/bucket_parts.h"
#include "ops/cast/cast.h"

namespace hone {

WeightRing::WeightRing(Communicator& communicator, const ParameterStore& store, const Placement& placement)
    : communicator_(communicator), placement_(placement), buckets_(placement.groups().size()) {
  for (const Bucket& bucket : store.all_buckets()) {
    if (bucket.shards_values()) buckets_[bucket.parameters.front()->group()->index()].push_back(&bucket);
  }
}

void WeightRing::acquire(const Context& context, const ParameterGroup& group, Use use) {
  if (!use.reads_values) return;
  if (has_shards(group)) {
    bring(context, group);
    slots_[group.slot()].used = true;
  }
  // Two at a time: recomputing a layer acquires its halves in the order of forward, its gradients in the other.
  constexpr int kAhead = 2;
  const auto index = static_cast<std::ptrdiff_t>(group.index());
  const auto count = static_cast<std::ptrdiff_t>(placement_.groups().size());
  for (int ahead = 1; ahead <= kAhead; ++ahead) {
    const std::ptrdiff_t next = use.backward ? index - ahead : index + ahead;
    if (next < 0 || next >= count) return;
    const ParameterGroup& other = placement_.groups()[static_cast<size_t>(next)];
    if (has_shards(other) && !slots_[other.slot()].used) bring(context, other);
  }
}

void WeightRing::release(const ParameterGroup& group) {
  if (has_shards(group)) slots_[group.slot()].used = false;
}

void WeightRing::forget_trained() {
  for (auto& [index, slot] : slots_) {
    if (slot.group == nullptr) continue;
    const std::vector<const Bucket*>& buckets = buckets_[slot.group->index()];
    if (std::any_of(buckets.begin(), buckets.end(), [](const Bucket* b) { return b->trained; })) slot.stale = true;
  }
}

void WeightRing::bring(const Context& context, const ParameterGroup& group) {
  Slot& slot = slots_[group.slot()];
  if (slot.group == &group && !slot.stale) return;
  HONE_ASSERT(!slot.used, group.name());
  if (slot.group != nullptr) {  // nobody may have waited for what is on its way there
    for (const Bucket* bucket : buckets_[slot.group->index()]) bucket->arrivals->await_on_stream();
  }
  slot.group = &group;
  slot.stale = false;
  for (const Bucket* bucket : buckets_[group.index()]) gather(context, *bucket);
}

void WeightRing::gather(const Context& context, const Bucket& bucket) {
  Stream& stream = context.stream();
  const std::vector<Part> parts = parts_of(bucket);
  const Part& own = parts[static_cast<size_t>(communicator_.rank())];
  copy(context, bucket.own_values,
       {element_at(bucket.values, own.offset), bucket.values.dtype, {own.count}, bucket.values.device});
  communicator_.fork(stream);
  {
    const ProfileScope scope(stream, communicator_.cuda_stream(), "all-gather", bucket.name,
                             static_cast<double>(bucket.values.bytes()));
    communicator_.all_gather(stream, bucket.values, parts);
  }
  const int64_t call = communicator_.calls();
  bucket.arrivals->expect({.on_stream =
                               [this, &stream, call, &bucket] {
                                 const ProfileScope scope(stream, ProfileKind::kWait, "wait for", bucket.name);
                                 communicator_.join(stream, call);
                               },
                           .on_host = [this, &stream, call] { communicator_.finish(stream, call); }});
}

}  // namespace hone
