#include "dist/weight_ring.h"

#include <algorithm>

#include "core/profiler.h"

namespace hone {

WeightRing::WeightRing(Communicator& communicator, const ParameterStore& store, const Placement& placement)
    : communicator_(communicator), placement_(placement), buckets_(placement.groups().size()) {
  for (const Bucket& bucket : store.all_buckets()) {
    if (bucket.shards_values()) buckets_[bucket.parameters.front()->group()->index()].push_back(&bucket);
  }
}

void WeightRing::acquire(Stream& stream, const ParameterGroup& group, Use use) {
  if (!use.reads_values) return;
  if (has_shards(group)) {
    bring(stream, group);
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
    if (has_shards(other) && !slots_[other.slot()].used) bring(stream, other);
  }
}

void WeightRing::release(const ParameterGroup& group) {
  if (has_shards(group)) slots_[group.slot()].used = false;
}

void WeightRing::forget_trained() {
  for (auto& [index, slot] : slots_) {
    if (slot.group == nullptr) continue;
    const std::vector<const Bucket*>& buckets = buckets_[slot.group->index()];
    if (std::any_of(buckets.begin(), buckets.end(), [](const Bucket* b) { return b->trained; })) slot.group = nullptr;
  }
}

void WeightRing::bring(Stream& stream, const ParameterGroup& group) {
  Slot& slot = slots_[group.slot()];
  if (slot.group == &group) return;
  HONE_ASSERT(!slot.used, group.name());
  slot.group = &group;
  communicator_.fork(stream);  // what has used the slot is queued
  for (const Bucket* bucket : buckets_[group.index()]) {
    {
      const ProfileScope scope(stream, communicator_.cuda_stream(), "all-gather", bucket->name,
                               static_cast<double>(bucket->values.bytes()));
      communicator_.all_gather(stream, bucket->own_values, bucket->values);
    }
    const int64_t call = communicator_.calls();
    bucket->arrivals->expect({.on_stream =
                                  [this, &stream, call, bucket] {
                                    const ProfileScope scope(stream, ProfileKind::kWait, "wait for", bucket->name);
                                    communicator_.join(stream, call);
                                  },
                              .on_host = [this, &stream, call] { communicator_.finish(stream, call); }});
  }
}

}  // namespace hone
