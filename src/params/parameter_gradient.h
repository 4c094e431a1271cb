// ParameterGradient: the gradient of a parameter on this rank, and its uses in a step.
#pragma once

#include <cstdint>

#include "params/parameter_share.h"
#include "tape/weight.h"

namespace hone {

struct StepScalars;

class ParameterGradient {
 public:
  /// The share must outlive it.
  explicit ParameterGradient(const ParameterShare& share) : share_(share) {}

  /// The whole gradient, as ops write it.
  const Tensor& whole() const { return whole_; }
  /// The elements of ParameterShare::own() that the optimizer reads: sums over ranks.
  Tensor own() const { return own_.defined() ? own_ : share_.own_part(whole_); }
  /// Whether it is in a slot that other groups use before and after: written in one pass of backward, and used when its
  /// group is released.
  bool staged() const { return staged_; }
  /// Whether this step, or its current micro-batch, has requested it.
  bool written() const { return uses_ > 0; }
  bool written_in_pass() const { return written_in_pass_; }

 private:
  friend class Parameter;
  friend class ParameterStore;

  /// The destination of its next use.
  GradDest next() {
    written_in_pass_ = true;
    return {whole_, uses_++ > 0 ? 1.0f : 0.0f};
  }

  const ParameterShare& share_;
  Tensor whole_, own_;
  bool staged_ = false;
  uint32_t uses_ = 0;  ///< destinations handed out in this step
  bool written_in_pass_ = false;
  const StepScalars* scalars_ = nullptr;  ///< this step's, in the memory of the gradient
};

}  // namespace hone
