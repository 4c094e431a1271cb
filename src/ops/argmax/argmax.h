// argmax: the most probable token of each row of logits, on the logits' device.
#pragma once

#include "core/stream/context.h"

namespace hone {

/// ids[r] = the lowest index of the largest values of x[r]; −1 if an element of the row is NaN or +infinity, or if all
/// are −infinity. Deterministic.
struct ArgmaxArgs {
  Tensor x;    ///< [R, V] float32 or bfloat16, V >= 1
  Tensor ids;  ///< out, i32 [R]
};

void argmax(const Context& context, const ArgmaxArgs& args);

namespace cpu {
void argmax(const Context& context, const ArgmaxArgs& args);
}
namespace cuda {
void argmax(const Context& context, const ArgmaxArgs& args);
}

}  // namespace hone
