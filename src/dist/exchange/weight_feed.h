// WeightFeed: brings the values of groups for passes that no engine runs, as those of generation.
#pragma once

#include "dist/exchange/weight_ring.h"

namespace hone {

class WeightFeed final : public GroupObserver {
 public:
  /// `ranks` share the store (null: one rank), which is allocated before the first pass. The arguments and the streams
  /// of the passes must outlive this object.
  WeightFeed(Communicator* ranks, const ParameterStore& store, const Placement& placement, Device device)
      : ring_(ranks, FetchWay::kAuto, store, placement, device) {}

  /// Passes that queue nothing need no values.
  void acquired(const Context& context, const ParameterGroup& group, Use use) override {
    if (!context.dry()) ring_.acquire(context, group, use);
  }
  void released(const Context& context, const ParameterGroup& group, Use) override {
    if (!context.dry()) ring_.release(group);
  }

 private:
  WeightRing ring_;
};

}  // namespace hone
