#include "nn/linear.h"

#include "ops/dora/dora.h"

namespace hone {

Linear::Linear(ParameterStore& store, const std::string& module, int64_t out, int64_t in, bool bias, ParameterKind kind,
               int layer, DType dtype) {
  weight_ = &store.add({module + ".weight", {out, in}, kind, layer, {}}, dtype);
  if (bias) bias_ = &store.add({module + ".bias", {out}, ParameterKind::kBias, layer, {}}, dtype);
}

Var Linear::operator()(Tape& tape, Var x, const Forward& forward) const {
  const Adapter* adapter = adapter_of(*weight_);
  if (adapter != nullptr && adapter->magnitude != nullptr) {
    return dora_linear(tape, x, *weight_, bias_, *adapter, forward.dropout_context());
  }
  return linear(tape, x, *weight_, bias_, adapter, forward.dropout_context());
}

void Linear::collect(std::vector<Parameter*>& group) const {
  group.push_back(weight_);
  if (bias_) group.push_back(bias_);
}

const Adapter* adapter_of(const Parameter& weight) {
  HONE_ASSERT(weight.adapters().size() <= 1, weight.name());
  return weight.adapters().empty() ? nullptr : &weight.adapters().front().adapter;
}

}  // namespace hone
