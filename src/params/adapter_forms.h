// AdapterForms: several adapters of one base model in memory, of which its parameters have one at a time, or none.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "params/adapter.h"
#include "params/parameter_store.h"

namespace hone {

class AdapterForms {
 public:
  size_t count() const { return forms_.size(); }

  /// Detaches the adapters of all parameters, as the last form or the first. None may be in use.
  void take(ParameterStore& store) { forms_.push_back(detached(store)); }
  void take_first(ParameterStore& store) { forms_.insert(forms_.begin(), detached(store)); }

  /// Attaches those of a form, which must exist; unset: none, which is the base model.
  void use(ParameterStore& store, std::optional<size_t> form) {
    if (form == used_) return;
    if (used_) forms_[*used_] = detached(store);
    if (form) {
      for (auto& [parameter, adapters] : forms_[*form]) parameter->adapters() = std::move(adapters);
    }
    used_ = form;
  }

 private:
  using Form = std::vector<std::pair<Parameter*, Adapters>>;

  static Form detached(ParameterStore& store) {
    Form form;
    for (Parameter& parameter : store.all()) {
      if (!parameter.adapters().empty()) form.emplace_back(&parameter, std::exchange(parameter.adapters(), Adapters()));
    }
    return form;
  }

  std::vector<Form> forms_;
  std::optional<size_t> used_;
};

}  // namespace hone
