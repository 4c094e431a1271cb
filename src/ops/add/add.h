// add: the residual sum y = a + scale · b.
#pragma once

#include "tape/tape.h"

namespace hone {

/// y[i] = a[i] + round(scale · b[i]), rounded to the dtype of a. a and b have equal shapes and dtypes (float32 or
/// bfloat16), to which round rounds. Also accumulates gradients: without b, y = scale · a + beta · y, rounded once.
struct AddArgs {
  Tensor a;
  Tensor b;  ///< may be undefined
  Tensor y;
  float beta = 0.0f;  ///< 0 or 1
  float scale = 1.0f;
  Tensor factor = {};  ///< f32 [1], multiplies the scale; only without b. May be undefined
};

/// Elementwise, deterministic.
void add(const Context& context, const AddArgs& args);

/// Records y = a + scale · b. Backward saves nothing; da = dy, db = scale · dy. The scale is Granite's
/// residual_multiplier, with the rounding of Hugging Face.
Var add(Tape& tape, Var a, Var b, float scale = 1.0f);

/// Records y = factor · x; returns x if factor is 1.
Var scale(Tape& tape, Var x, float factor);
/// Records y = factor · x for a factor f32 [1], which has no gradient (Gemma 4's layer_scalar).
Var scale(Tape& tape, Var x, const Weight& factor);

/// Backward of y = a + scale · b: adds dy to a's gradient and scale · dy to b's.
void hand_down_sum(Tape& tape, Var a, Var b, float scale, const Tensor& dy);

namespace cpu {
void add(const Context& context, const AddArgs& args);
}

namespace cuda {
void add(const Context& context, const AddArgs& args);
}

}  // namespace hone
