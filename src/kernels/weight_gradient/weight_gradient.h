// weight_gradient: bfloat16 gradients of weights from the float32 sums of ops.
#pragma once

#include "core/stream/context.h"
#include "tape/step_scalars.h"
#include "tape/weight.h"

namespace hone {

/// The source of random numbers for rounding: the seed in the step's scalars (device memory), and a stream for each use
/// of each gradient.
struct GradRounding {
  const StepScalars* scalars = nullptr;
  uint64_t stream_id = 0;
};

/// A weight whose gradient may be bfloat16. Ops write such a destination with beta 0, rounded to nearest;
/// NarrowGradient below handles other cases.
class NarrowGradWeight : public Weight {
 public:
  /// For adding to the last destination returned by grad().
  virtual GradRounding rounding() const = 0;
};

/// dst = src, rounded to nearest (beta 0), or src + dst, rounded stochastically (beta 1): a micro-batch may add less
/// than half the distance of two bfloat16 (stochastic_rounding.h). The random numbers depend on `rounding`, the element
/// and the addend. Elementwise, deterministic.
struct StoreGradientArgs {
  Tensor src;                  ///< float32
  GradDest dst;                ///< bfloat16, as many elements
  GradRounding rounding = {};  ///< for beta 1
};

void store_gradient(const Context& context, const StoreGradientArgs& args);

/// One use of a weight's gradient in a node's backward:
///   NarrowGradient dw(tape.context(), *w);
///   linear_grad(tape.context(), {…, .dw = dw.dest});
///   dw.store();
/// Until store() a bfloat16 destination is float32 scratch memory, unless beta is 0 and the op rounds itself.
class NarrowGradient {
 public:
  NarrowGradient(const Context& context, Weight& weight, bool op_rounds = false);
  void store() const;

  GradDest dest;  ///< destination for the op

 private:
  Context context_;
  ArenaScope scope_;
  GradDest kept_;  ///< the final destination, if that is not dest
  GradRounding rounding_;
};

namespace cpu {
void store_gradient(const Context& context, const StoreGradientArgs& args);
}

namespace cuda {
void store_gradient(const Context& context, const StoreGradientArgs& args);
}

}  // namespace hone
