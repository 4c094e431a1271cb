// adamw: one update of parameters by Adam with decoupled weight decay.
// Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (arXiv:1711.05101); order of operations as in
// torch.optim.AdamW.
#pragma once

#include <vector>

#include "core/context.h"
#include "graph/step_scalars.h"

namespace hone {

/// A parameter with its optimizer state; all of one number of elements.
struct AdamwTensor {
  Tensor parameter;          ///< float32: the master weight, or the parameter itself
  Tensor working_copy = {};  ///< bfloat16 copy of the parameter to refresh, or undefined
  Tensor m, v;               ///< moments, both float32 or both bfloat16; zero before the first step
  Tensor gradient;           ///< float32
  double weight_decay = 0;
  uint32_t stream_id = 0;  ///< separates this tensor's random numbers from all others; for bfloat16 moments
};

/// For each tensor, in this order, all in float32, with the step's scalars (lr, 1 - beta1^t, 1 - beta2^t, clip) read on
/// the device:
///   g = gradient · clip_coefficient
///   p = p · (1 - lr · weight_decay)
///   m = m + (g - m) · (1 - beta1)
///   v = v · beta2 + (1 - beta2) · g²
///   p = p - lr / (1 - beta1^t) · m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
///   working_copy = round(p)
/// Moments of bfloat16 are widened, and rounded stochastically where they are stored (stochastic_rounding.h), with
/// random numbers that depend on the step's seed, the tensor's stream_id and the element; the parameter's step takes
/// them unrounded. All tensors have moments of one dtype. Nothing is written if the step's nonfinite flag is set.
/// Elementwise, deterministic.
struct AdamwArgs {
  std::vector<AdamwTensor> tensors;  ///< of any number and sizes: a GPU takes many small ones in one launch
  const StepScalars* scalars = nullptr;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};

void adamw(const Context& context, const AdamwArgs& args);

namespace cpu {
void adamw(const Context& context, const AdamwArgs& args);
}

namespace cuda {
void adamw(const Context& context, const AdamwArgs& args);
}

}  // namespace hone
