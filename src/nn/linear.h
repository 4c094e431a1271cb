// Linear: a weight with an optional bias and an optional adapter.
#pragma once

#include "nn/forward.h"
#include "params/parameter_store.h"

namespace hone {

class Linear {
 public:
  Linear() = default;
  /// Adds `<module>.weight` [out, in] and, with `bias`, `<module>.bias` [out].
  Linear(ParameterStore& store, const std::string& module, int64_t out, int64_t in, bool bias, ParameterKind kind,
         int layer, DType dtype);

  /// x [T, in] -> [T, out]
  Var operator()(Tape& tape, Var x, const Forward& forward) const;

  void collect(std::vector<Parameter*>& group) const;

  int64_t out() const { return weight_->shape()[0]; }
  /// Multiply-adds × 2 of the product for `tokens` tokens, without adapters.
  double flops(double tokens) const { return 2 * tokens * static_cast<double>(weight_->shape().numel()); }

 private:
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
};

/// The adapter of a dense weight, or null.
const AttachedAdapter* adapter_of(const Parameter& weight);
/// A and B of a dense weight's adapter; null without an adapter.
const Adapter* factors_of(const Parameter& weight);

}  // namespace hone
