// Host copies of parameters, read ahead.
#pragma once

#include <future>
#include <list>
#include <vector>

#include "params/parameter_store.h"
#include "weights/state_reader.h"

namespace hone {

/// Float32 values of parameters in host memory. Those on a device or on several ranks are read whole, since an adapter
/// of many experts has many small tensors; the copies of the last few are kept, and their memory is used again.
class HostParameters {
 public:
  /// `reader` reads values that ranks keep parts of; null: there are none.
  explicit HostParameters(StateReader* reader = nullptr) : reader_(reader) {}

  /// The exact values, in the parameter's shape, until kKept other parameters have been asked for.
  const float* operator[](const Parameter& parameter);
  /// Begins to read what will be asked for next, beside what the caller does meanwhile.
  void prefetch(const Parameter& parameter);

 private:
  static constexpr size_t kKept = 8;
  struct Copy {
    const Parameter* parameter = nullptr;
    std::vector<float> values;
    std::future<void> read;  // of a copy that has not been asked for yet
  };
  /// Begins to read a parameter, unless that has begun, and puts its copy first.
  Copy& copy_of(const Parameter& parameter);

  StateReader* reader_;
  std::list<Copy> copies_;  // used last comes first
};

}  // namespace hone
