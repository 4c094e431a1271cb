// Placement: the groups of parameters that a model uses together, and the observer of their uses. For models and ops it
// makes no difference whether a group's values are always on the device or are copied there for each use.
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "params/parameter.h"

namespace hone {

class Placement;

/// Which half of a layer a group is.
enum class LayerHalf { kNone, kMixer, kFeedForward };

/// Parameters that are used together: the embedding, one half of a layer, the final norm, the head.
class ParameterGroup final : public Residency {
 public:
  struct Place {
    std::string name;  ///< "embedding", "layer 3", "layer 3 feed-forward"
    int layer = -1;    ///< -1: outside the layers
    LayerHalf half = LayerHalf::kNone;
  };
  /// `turn`: how many groups of the same half come before.
  ParameterGroup(const Placement& placement, size_t index, Place place, int64_t turn)
      : placement_(placement), index_(index), place_(std::move(place)), turn_(turn) {}

  /// Its place in the order of forward, from 0.
  size_t index() const { return index_; }
  const std::string& name() const { return place_.name; }
  int layer() const { return place_.layer; }
  LayerHalf half() const { return place_.half; }
  /// For a half of a layer: the slot of its gradients, which it shares with every second of the same halves. Values
  /// that are brought have their own (Bucket::slot).
  int slot() const {
    HONE_ASSERT(layer() >= 0, name());
    return 2 * static_cast<int>(half()) + static_cast<int>(turn_ % 2);
  }

  void acquire(const Context& context, Use use) override;
  void release(const Context& context, Use use) override;

 private:
  const Placement& placement_;
  size_t index_;
  Place place_;
  int64_t turn_;
};

/// Notified of every use of every group, in queue order, which is the same on all ranks that run a pass.
class GroupObserver {
 public:
  virtual ~GroupObserver() = default;
  /// The group's ops are about to be queued. In backward this call comes between the uses of two groups, after the
  /// gradients requested before have been queued.
  virtual void acquired(const Context& context, const ParameterGroup& group, Use use) = 0;
  /// The group's ops have been queued. In backward its gradients are final for this pass.
  virtual void released(const Context& context, const ParameterGroup& group, Use use) = 0;
};

class Placement {
 public:
  Placement() = default;
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  /// Adds the next group in the order of forward, and sets it in its parameters. Its address stays valid. A parameter
  /// in two groups (a head that is the embedding) belongs to the first.
  ParameterGroup& group(ParameterGroup::Place place, const std::vector<Parameter*>& parameters) {
    const auto turn = std::ranges::count(groups_, place.half, &ParameterGroup::half);
    ParameterGroup& group = groups_.emplace_back(*this, groups_.size(), std::move(place), turn);
    for (Parameter* parameter : parameters) {
      if (parameter->group() == nullptr) parameter->set_group(&group);
    }
    return group;
  }
  const std::deque<ParameterGroup>& groups() const { return groups_; }

 private:
  friend class ParameterGroup;
  friend class Observing;

  std::deque<ParameterGroup> groups_;
  GroupObserver* observer_ = nullptr;
};

/// Registers an observer of uses while it lives.
class Observing {
 public:
  Observing(Placement& placement, GroupObserver& observer) : placement_(placement) {
    HONE_ASSERT(placement.observer_ == nullptr, "one observer at a time");
    placement.observer_ = &observer;
  }
  ~Observing() { placement_.observer_ = nullptr; }
  Observing(const Observing&) = delete;
  Observing& operator=(const Observing&) = delete;

 private:
  Placement& placement_;
};

inline void ParameterGroup::acquire(const Context& context, Use use) {
  if (placement_.observer_) placement_.observer_->acquired(context, *this, use);
}

inline void ParameterGroup::release(const Context& context, Use use) {
  if (placement_.observer_) placement_.observer_->released(context, *this, use);
}

}  // namespace hone
