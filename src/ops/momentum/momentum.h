// momentum: one update of parameters by an optimizer with at most one moment: SGD or Lion. Sources: SGD as in
// torch.optim.SGD (Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013,
// for Nesterov momentum); Lion: Chen et al., "Symbolic Discovery of Optimization Algorithms" (arXiv:2302.06675),
// algorithm 2.
#pragma once

#include <vector>

#include "core/stream/context.h"
#include "tape/step_scalars.h"

namespace hone {

enum class MomentumRule { kSgd, kNesterov, kLion };

/// A parameter with its optimizer state; all tensors have the same number of elements.
struct MomentumTensor {
  Tensor parameter;          ///< float32: the master weight, or the parameter itself; bfloat16: the parameter itself
  Tensor working_copy = {};  ///< bfloat16 copy of a float32 parameter to refresh, or undefined
  Tensor m = {};             ///< float32 or bfloat16, zero before the first step; undefined: kSgd with momentum 0
  Tensor gradient;           ///< float32 or bfloat16
  double weight_decay = 0;
  uint32_t stream_id = 0;  ///< separates this tensor's random numbers from all others
  /// Index of the first element in a larger tensor of which these are a part, a multiple of 256; random numbers are
  /// those of the larger tensor.
  int64_t first_element = 0;
};

/// For each tensor, in float32, with the step's scalars (lr, clip) read on the device:
///   g = gradient · clip_coefficient
/// SGD (weight decay is part of the gradient):
///   g = g + weight_decay · p
///   m = beta1 · m + g
///   p = p - lr · m; without m: p - lr · g; with Nesterov momentum: p - lr · (g + beta1 · m)
/// Lion:
///   p = p · (1 - lr · weight_decay) - lr · sign(beta1 · m + (1 - beta1) · g)
///   m = beta2 · m + (1 - beta2) · g
/// Both:
///   working_copy = round(p)
/// bfloat16 values are stored with stochastic rounding (stochastic_rounding.h), with random numbers that depend on the
/// step's seed, the tensor's stream_id and the element; the parameter's update uses the unrounded moment. Nothing is
/// written if the step's nonfinite flag is set. Deterministic.
struct MomentumArgs {
  std::vector<MomentumTensor> tensors;  ///< any number and sizes: a GPU updates many small ones in one launch
  const StepScalars* scalars = nullptr;
  MomentumRule rule = MomentumRule::kSgd;
  double beta1 = 0;        ///< momentum of SGD, or beta1 of Lion
  double beta2 = 0;        ///< beta2 of Lion
  double rate_factor = 1;  ///< factor of the step's learning rate
};

void momentum(const Context& context, const MomentumArgs& args);

namespace cpu {
void momentum(const Context& context, const MomentumArgs& args);
}

namespace cuda {
void momentum(const Context& context, const MomentumArgs& args);
}

}  // namespace hone
