#include "nn/linear.h"

#include "ops/linear/linear.h"
#include "params/adapter.h"

namespace hone {

Linear::Linear(ParameterStore& store, const std::string& module, int64_t out, int64_t in, bool bias, ParameterKind kind,
               int layer, DType dtype) {
  weight_ = &store.add({module + ".weight", {out, in}, kind, layer, {}}, dtype);
  if (bias) bias_ = &store.add({module + ".bias", {out}, ParameterKind::kBias, layer, {}}, dtype);
}

const AttachedAdapter* adapter_of(const Parameter& weight) {
  HONE_ASSERT(weight.adapters().size() <= 1, weight.name());
  return weight.adapters().empty() ? nullptr : weight.adapters().front().get();
}

Var Linear::operator()(Tape& tape, Var x, const Forward& forward) const {
  const LoraDropoutContext rows = forward.dropout_context();
  if (const AttachedAdapter* adapter = adapter_of(*weight_)) return adapter->forward(tape, x, *weight_, bias_, rows);
  return linear(tape, x, *weight_, bias_, nullptr, rows);
}

void Linear::collect(std::vector<Parameter*>& group) const {
  group.push_back(weight_);
  if (bias_) group.push_back(bias_);
}

const Adapter* factors_of(const Parameter& weight) {
  const AttachedAdapter* adapter = adapter_of(weight);
  if (adapter == nullptr) return nullptr;
  HONE_ASSERT(adapter->low_rank() != nullptr, weight.name());
  return &adapter->low_rank()->factors;
}

}  // namespace hone
