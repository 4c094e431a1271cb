// WeightRing: makes the values of a group present on the device during its use: fetches them from the ranks that keep
// parts of them (dist/exchange/weight_fetcher.h), copies them from host memory, or both; or has them read from files
// (params/value_reader.h). Halves of layers share slots
// of memory, two for each kind of half (Bucket::slot). While one group is used, the next two with such values in the
// direction of the pass are prefetched, however far they are, so that this overlaps with compute. Every rank calls it
// for the same groups in the same order.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "core/stream/context.h"
#include "core/stream/copy_lane.h"
#include "dist/exchange/weight_fetcher.h"
#include "params/parameter_store.h"
#include "params/placement.h"

namespace hone {

class WeightRing {
 public:
  /// `store` is sharded over `ranks`, a shard group's (null: one rank). The arguments and the streams used must outlive
  /// this object.
  WeightRing(Communicator* ranks, FetchWay way, const ParameterStore& store, const Placement& placement, Device device);
  /// Waits for values that no pass has read.
  ~WeightRing();
  WeightRing(const WeightRing&) = delete;
  WeightRing& operator=(const WeightRing&) = delete;

  /// Call it before work that uses the group is queued on the context's stream. Starts what is needed to make its
  /// values present; readers wait for them (params/arrival.h).
  void acquire(const Context& context, const ParameterGroup& group, Use use);
  void release(const ParameterGroup& group);
  /// How values come from other ranks, once they have: "peer copies"; "" before.
  std::string_view fetches_by() const { return fetcher_ ? fetcher_->name() : std::string_view(); }
  /// Call it before the collective that every rank joins before it changes stored values.
  void begin_update(const Context& context) {
    if (fetcher_) fetcher_->begin_update(context);
  }
  /// Call it after the stored values of trained parameters have been changed: those in slots are stale.
  void end_update(const Context& context);

 private:
  /// The state of a slot: the group whose values it has, or will have.
  struct Slot {
    const ParameterGroup* group = nullptr;
    bool used = false;   ///< between acquire and release
    bool stale = false;  ///< the stored values have changed since
  };
  bool brings(const ParameterGroup& group) const { return !buckets_[group.index()].empty(); }
  /// The slot of a group that brings values.
  Slot& slot_of(const ParameterGroup& group) { return slots_[buckets_[group.index()].front()->layout.slot]; }
  /// Starts the copies and gathers of the group's values, unless its slot has them. The slot must not be in use.
  void bring(const Context& context, const ParameterGroup& group);
  void bring(const Context& context, const Bucket& bucket);

  Communicator* ranks_;
  FetchWay way_;
  const ParameterStore& store_;
  /// From the first use on: by then every rank has loaded its values.
  std::unique_ptr<WeightFetcher> fetcher_;
  CopyLane lane_;  // from host memory
  const Placement& placement_;
  std::vector<std::vector<const Bucket*>> buckets_;  // one list for each group
  std::map<int, Slot> slots_;
};

}  // namespace hone
