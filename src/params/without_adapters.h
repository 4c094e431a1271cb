// The base model of an adapted one, without loading it twice.
#pragma once

#include <utility>
#include <vector>

#include "params/adapter.h"
#include "params/parameter_store.h"

namespace hone {

/// Detaches the adapters from the parameters while it lives.
class WithoutAdapters {
 public:
  explicit WithoutAdapters(ParameterStore& store) : store_(store) {
    for (Parameter& parameter : store_.all()) adapters_.push_back(std::exchange(parameter.adapters(), Adapters()));
  }
  ~WithoutAdapters() {
    size_t i = 0;
    for (Parameter& parameter : store_.all()) parameter.adapters() = std::move(adapters_[i++]);
  }
  WithoutAdapters(const WithoutAdapters&) = delete;
  WithoutAdapters& operator=(const WithoutAdapters&) = delete;

 private:
  ParameterStore& store_;
  std::vector<Adapters> adapters_;
};

}  // namespace hone
