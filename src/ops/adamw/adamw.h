// adamw: one update of parameters by Adam with decoupled weight decay. Source: Loshchilov and Hutter, "Decoupled Weight
// Decay Regularization" (arXiv:1711.05101); order of operations as in torch.optim.AdamW. 8-bit moments: dynamic_code.h.
#pragma once

#include <vector>

#include "core/stream/context.h"
#include "tape/step_scalars.h"

namespace hone {

/// A moment of a parameter: float32, bfloat16, or 8-bit codes (i8 for the first moment, u8 for the second) with a
/// float32 scale per 256 elements. All zero before the first step.
struct Moment {
  Tensor values;
  Tensor scales = {};  ///< [ceil(n / 256)], for 8 bits only
};

/// A parameter with its optimizer state; all tensors have the same number of elements.
struct AdamwTensor {
  Tensor parameter;          ///< float32: the master weight, or the parameter itself; bfloat16: the parameter itself
  Tensor working_copy = {};  ///< bfloat16 copy of a float32 parameter to refresh, or undefined
  Moment m, v;
  Tensor gradient;  ///< float32 or bfloat16
  double weight_decay = 0;
  uint32_t stream_id = 0;  ///< separates this tensor's random numbers from all others
  /// Index of the first element in a larger tensor of which these are a part, a multiple of 256; random numbers are
  /// those of the larger tensor.
  int64_t first_element = 0;
};

/// For each tensor, in this order, in float32, with the step's scalars (lr, 1 - beta1^t, 1 - beta2^t, clip) read on the
/// device:
///   g = gradient · clip_coefficient
///   p = p · (1 - lr · weight_decay)
///   m = m + (g - m) · (1 - beta1)
///   v = v · beta2 + (1 - beta2) · g²
///   p = p - lr / (1 - beta1^t) · m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
///   working_copy = round(p)
/// Narrow values are widened first, and stored with stochastic rounding (stochastic_rounding.h, dynamic_code.h), with
/// random numbers that depend on the step's seed, the tensor's stream_id and the element; the parameter's update uses
/// the unrounded moments. Each tensor has its own dtypes. Nothing is written if the step's nonfinite flag is set.
/// Deterministic.
struct AdamwArgs {
  std::vector<AdamwTensor> tensors;  ///< any number and sizes: a GPU updates many small ones in one launch
  const StepScalars* scalars = nullptr;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double rate_factor = 1;  ///< factor of the step's learning rate
};

void adamw(const Context& context, const AdamwArgs& args);

namespace cpu {
void adamw(const Context& context, const AdamwArgs& args);
}

namespace cuda {
void adamw(const Context& context, const AdamwArgs& args);
}

}  // namespace hone
