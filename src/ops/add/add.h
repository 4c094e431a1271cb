// add: the residual sum y = a + scale · b.
#pragma once

#include "tape/tape.h"

namespace hone {

/// y[i] = a[i] + round(scale · b[i]), rounded to the dtype of a. Shapes and dtypes of a and b are equal (float32 or
/// bfloat16); round is to that dtype. Also the accumulation of gradients: without b, y = scale · a + beta · y, rounded
/// once.
struct AddArgs {
  Tensor a;
  Tensor b;  ///< may be undefined
  Tensor y;
  float beta = 0.0f;  ///< 0 or 1
  float scale = 1.0f;
};

/// Elementwise, deterministic.
void add(const Context& context, const AddArgs& args);

/// Records y = a + scale · b. Backward saves nothing; da = dy, db = scale · dy. Source of the scale: Granite's
/// residual_multiplier, as Hugging Face computes it.
Var add(Tape& tape, Var a, Var b, float scale = 1.0f);

/// Records y = factor · x; x itself where factor is 1.
Var scale(Tape& tape, Var x, float factor);

/// For backward of y = a + scale · b: hands dy to a and scale · dy to b.
void hand_down_sum(Tape& tape, Var a, Var b, float scale, const Tensor& dy);

namespace cpu {
void add(const Context& context, const AddArgs& args);
}

namespace cuda {
void add(const Context& context, const AddArgs& args);
}

}  // namespace hone
