// add: the residual sum y = a + b.
#pragma once

#include "graph/tape.h"

namespace hone {

/// y[i] = a[i] + b[i], rounded once to the dtype of a. Shapes and dtypes of a and b are equal (float32 or bfloat16).
/// Also the accumulation of gradients: with beta = 1, y += a (b undefined).
struct AddArgs {
  Tensor a;
  Tensor b;  ///< may be undefined: y = a + beta · y
  Tensor y;
  float beta = 0.0f;  ///< 0 or 1
};

/// Elementwise, deterministic.
void add(const Context& context, const AddArgs& args);

/// Records y = a + b. Backward saves nothing; da = db = dy.
Var add(Tape& tape, Var a, Var b);

namespace cpu {
void add(const Context& context, const AddArgs& args);
}

namespace cuda {
void add(const Context& context, const AddArgs& args);
}

}  // namespace hone
