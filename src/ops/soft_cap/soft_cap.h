// soft_cap: keeps values between -cap and cap, smoothly (the logits of Gemma). Source: Gemma 2 (arXiv:2408.00118),
// section 2. The head with loss has a cap of its own (ops/linear_cross_entropy).
#pragma once

#include "tape/tape.h"

namespace hone {

/// y[i] = cap · tanh(x[i] / cap), in float32, rounded once to the dtype of y. x and y have the same dtype, float32 or
/// bfloat16; y may be x. Deterministic.
struct SoftCapArgs {
  Tensor x, y;
  float cap = 0;
};

void soft_cap(const Context& context, const SoftCapArgs& args);

/// Records y = soft_cap(x), cap > 0, in a forward pass without backward; returns x if cap is 0.
Var soft_cap(Tape& tape, Var x, float cap);

namespace cpu {
void soft_cap(const Context& context, const SoftCapArgs& args);
}

namespace cuda {
void soft_cap(const Context& context, const SoftCapArgs& args);
}

}  // namespace hone
