// WeightRing: makes the values of a group present on the device during its use: gathers them from the ranks that keep
// parts of them, copies them from host memory, or both. Halves of layers share slots of memory, two for each kind of
// half (params/placement.h). While one group is used, the next two in the direction of the pass are prefetched, so
// gathers and copies overlap with compute. Every rank calls it for the same groups in the same order.
#pragma once

#include <map>
#include <vector>

#include "core/context.h"
#include "core/copy_lane.h"
#include "dist/communicator.h"
#include "params/parameter_store.h"
#include "params/placement.h"

namespace hone {

class WeightRing {
 public:
  /// `store` is sharded over `ranks`, a shard group's (null: one rank). The arguments and the streams used must outlive
  /// this object.
  WeightRing(Communicator* ranks, const ParameterStore& store, const Placement& placement, Device device);

  /// Call it before work that uses the group is queued on the context's stream. Starts what is needed to make its
  /// values present; readers wait for them (params/arrival.h).
  void acquire(const Context& context, const ParameterGroup& group, Use use);
  void release(const ParameterGroup& group);
  /// Marks trained values in slots as stale, after the stored values have changed.
  void forget_trained();

 private:
  /// The state of a slot: the group whose values it has, or will have.
  struct Slot {
    const ParameterGroup* group = nullptr;
    bool used = false;   ///< between acquire and release
    bool stale = false;  ///< the stored values have changed since
  };
  bool brings(const ParameterGroup& group) const { return !buckets_[group.index()].empty(); }
  /// Starts the copies and gathers of the group's values, unless its slot has them. The slot must not be in use.
  void bring(const Context& context, const ParameterGroup& group);
  void bring(const Context& context, const Bucket& bucket);
  /// Gathers the parts of all ranks; this rank's part must be in place if it comes from host memory.
  void gather(const Context& context, const Bucket& bucket);

  Communicator* ranks_;
  CopyLane lane_;  // from host memory
  const Placement& placement_;
  std::vector<std::vector<const Bucket*>> buckets_;  // of each group
  std::map<int, Slot> slots_;
};

}  // namespace hone
