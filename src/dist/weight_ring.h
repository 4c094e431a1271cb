// WeightRing: brings the values of a group to the device for the time of its use: from the ranks that keep parts of
// them, from host memory, or both. Halves of layers take turns in slots of memory, two for each half
// (params/placement.h): while one is used, the next two in the direction of the pass are on their way, so that gathers
// and copies run beside the work on another half. Every rank calls it for the same groups in the same order, so all
// start the same gathers.
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
  /// `store` has been shared among the ranks (null: there is one). All outlive this, and so does the stream that it is
  /// used with.
  WeightRing(Communicator* ranks, const ParameterStore& store, const Placement& placement, Device device);

  /// The group is about to be used by what is queued on the context's stream: its values are there, or on their way,
  /// and whatever reads one waits (params/arrival.h).
  void acquire(const Context& context, const ParameterGroup& group, Use use);
  void release(const ParameterGroup& group);
  /// Trained values have changed where they are kept.
  void forget_trained();

 private:
  /// What the memory of a slot has, or has been promised.
  struct Slot {
    const ParameterGroup* group = nullptr;
    bool used = false;   ///< between acquire and release
    bool stale = false;  ///< the values have changed where they are kept
  };
  bool brings(const ParameterGroup& group) const { return !buckets_[group.index()].empty(); }
  /// Starts bringing the group's values, unless they are there. Its slot is not in use for another group.
  void bring(const Context& context, const ParameterGroup& group);
  void bring(const Context& context, const Bucket& bucket);
  /// Of all ranks, when this rank's part is in its place.
  void gather(const Context& context, const Bucket& bucket);

  Communicator* ranks_;
  CopyLane lane_;  // from host memory
  const Placement& placement_;
  std::vector<std::vector<const Bucket*>> buckets_;  // of each group
  std::map<int, Slot> slots_;
};

}  // namespace hone
