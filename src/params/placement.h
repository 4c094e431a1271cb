// Placement: where the bytes of parameters are while they are not used, and what makes them present.
#pragma once

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
};

/// Everything stays on the device.
class ResidentPlacement : public Placement {
 public:
  std::unique_ptr<Residency> group(std::vector<Parameter*>) override { return std::make_unique<Resident>(); }

 private:
  struct Resident : Residency {
    void acquire() override {}
    void release() override {}
  };
};

}  // namespace hone
