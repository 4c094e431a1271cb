// swiglu: the gated activation of dense MLPs, y = silu(gate) · up.
// Source: Shazeer, "GLU Variants Improve Transformer" (arXiv:2002.05202).
#pragma once

#include "tape/tape.h"

namespace hone {

/// y[i] = round(silu(gate[i])) · up[i] with silu(x) = x / (1 + exp(-x)). All are [T, I] with the same dtype, float32 or
/// bfloat16, to which round rounds (as Hugging Face's MLPs do); the arithmetic is float32. Deterministic.
struct SwigluArgs {
  Tensor gate, up, y;
  int64_t pitch = 0;  ///< elements between rows of gate and up (the halves of one tensor); 0: I
};

void swiglu(const Context& context, const SwigluArgs& args);

/// With s = sigmoid(gate):
///   dgate[i] = dy[i] · up[i] · s · (1 + gate[i] · (1 - s)),   dup[i] = dy[i] · round(silu(gate[i]))
/// Either is optional; the destinations have the dtype of gate.
struct SwigluGradArgs {
  Tensor gate, up, dy;
  GradDest dgate, dup;
  int64_t pitch = 0;  ///< as above; also for dgate and dup
};

void swiglu_grad(const Context& context, const SwigluGradArgs& args);

/// Records y = silu(gate) · up; backward saves gate and up.
Var swiglu(Tape& tape, Var gate, Var up);
/// As above, for gate_up [T, 2I], whose rows have gate, then up.
Var swiglu(Tape& tape, Var gate_up);

namespace cpu {
void swiglu(const Context& context, const SwigluArgs& args);
void swiglu_grad(const Context& context, const SwigluGradArgs& args);
}  // namespace cpu

namespace cuda {
void swiglu(const Context& context, const SwigluArgs& args);
void swiglu_grad(const Context& context, const SwigluGradArgs& args);
}  // namespace cuda

}  // namespace hone
