// The base model of an adapted one, without loading it twice.
#pragma once

#include "params/adapter_forms.h"

namespace hone {

/// Detaches the adapters from the parameters while it lives.
class WithoutAdapters {
 public:
  explicit WithoutAdapters(ParameterStore& store) : store_(store) { forms_.take(store_); }
  ~WithoutAdapters() { forms_.use(store_, 0); }
  WithoutAdapters(const WithoutAdapters&) = delete;
  WithoutAdapters& operator=(const WithoutAdapters&) = delete;

 private:
  ParameterStore& store_;
  AdapterForms forms_;
};

}  // namespace hone
