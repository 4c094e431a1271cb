// ValueMemory: memory of values that the store does not lay out: other processes read it, or fill a part of it.
#pragma once

#include <functional>

#include "core/base/tensor.h"
#include "params/parameter_bytes.h"

namespace hone {

class Parameter;

/// The tensors of one value, in its format.
struct ValueTensors {
  Tensor payload = {};  ///< what this rank keeps
  Tensor scales = {};   ///< undefined if the format has none
  Tensor present = {};  ///< what ops read, if it is brought for each use; else undefined: they read the payload
};

class ValueMemory {
 public:
  virtual ~ValueMemory() = default;

  /// What it adds to this rank's bytes.
  virtual ParameterBytes bytes() const = 0;
  /// Allocates; on a planned device (core/cuda/planned_device.h) addresses alone. UserError if there is not enough.
  virtual void allocate(Device device) = 0;
  /// After allocate(): calls `place` for every parameter that is in it.
  virtual void for_each(const std::function<void(Parameter&, const ValueTensors&)>& place) const = 0;
};

}  // namespace hone
