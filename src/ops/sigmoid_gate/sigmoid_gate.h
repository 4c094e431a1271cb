// sigmoid_gate: activations times the sigmoid of a gate, one per element (the attention output of Qwen3.5) or one per
// row (the shared expert of Qwen2-MoE). Sources: Qwen2-MoE's and Qwen3.5's modeling files in Hugging Face's
// transformers.
#pragma once

#include "tape/tape.h"

namespace hone {

/// y[t, i] = x[t, i] · round(sigmoid(gate[t, i])), or · round(sigmoid(gate[t, 0])) if gate has one column. x and y [T,
/// D], gate [T, D] or [T, 1], all with the same dtype, float32 or bfloat16, to which round rounds (as Hugging Face's
/// modules do); the arithmetic is float32. y may be x. Deterministic.
struct SigmoidGateArgs {
  Tensor gate, x, y;
};

void sigmoid_gate(const Context& context, const SigmoidGateArgs& args);

/// With s = sigmoid(gate):
///   dx = dy · round(s),   dgate = dy · x · s · (1 - s), summed over the row if gate has one column
/// Either is optional; dtypes as gate. Sums are float32 in a fixed order.
struct SigmoidGateGradArgs {
  Tensor gate, x, dy;
  GradDest dgate, dx;
};

void sigmoid_gate_grad(const Context& context, const SigmoidGateGradArgs& args);

/// Records y = sigmoid(gate) · x; backward saves gate and x.
Var sigmoid_gate(Tape& tape, Var gate, Var x);

namespace cpu {
void sigmoid_gate(const Context& context, const SigmoidGateArgs& args);
void sigmoid_gate_grad(const Context& context, const SigmoidGateGradArgs& args);
}  // namespace cpu

namespace cuda {
void sigmoid_gate(const Context& context, const SigmoidGateArgs& args);
void sigmoid_gate_grad(const Context& context, const SigmoidGateGradArgs& args);
}  // namespace cuda

}  // namespace hone
