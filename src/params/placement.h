// Placement: where the bytes of parameters are while they are not used, and what makes them present.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "params/parameter.h"

namespace hone {

/// Hands out, for a group of parameters that are used together, the Residency that a model acquires around their use.
/// Sharding and offload are other placements; models and ops do not know which one they run under.
class Placement {
 public:
  virtual ~Placement() = default;
  virtual std::unique_ptr<Residency> group(std::vector<Parameter*> parameters) = 0;

  /// Called whenever a group is acquired; in backward that is between the uses of two parameters, when the gradients
  /// that were asked for have been queued.
  void on_acquire(std::function<void()> callback) { on_acquire_ = std::move(callback); }
  /// Called whenever a group is released: after its use in forward, and at the end of its block's backward, when the
  /// gradients of the block are final and nobody reads its parameters again.
  void on_release(std::function<void()> callback) { on_release_ = std::move(callback); }

 protected:
  std::function<void()> on_acquire_, on_release_;
};

/// Everything stays on the device.
class ResidentPlacement : public Placement {
 public:
  std::unique_ptr<Residency> group(std::vector<Parameter*>) override { return std::make_unique<Resident>(*this); }

 private:
  struct Resident : Residency {
    explicit Resident(const ResidentPlacement& p) : placement(p) {}
    void acquire() override {
      if (placement.on_acquire_) placement.on_acquire_();
    }
    void release() override {
      if (placement.on_release_) placement.on_release_();
    }
    const ResidentPlacement& placement;
  };
};

}  // namespace hone
