// grad_norm: the global 2-norm of all gradients, the clip coefficient, and a check for values that are not finite.
#pragma once

#include <vector>

#include "core/stream/context.h"
#include "tape/step_scalars.h"

namespace hone {

/// sum_of_squares = Σ over tensors and elements of g², squared and summed in float64 in chunks of fixed size, which are
/// added in order: deterministic, and independent of the number of threads.
struct SumOfSquaresArgs {
  std::vector<Tensor> gradients;  ///< float32 or bfloat16; each logical element once (tied weights are one tensor)
  Tensor sum_of_squares;          ///< float64 [1], overwritten
  Tensor first_nonfinite;         ///< i32 [1], overwritten: index of the first gradient with a NaN or infinity, or -1
  /// Continues from the results of an earlier call in the step, which had this many gradients; -1: starts from zero.
  int32_t earlier_gradients = -1;
};

void sum_of_squares(const Context& context, const SumOfSquaresArgs& args);

/// From the global sum of squares (after any reduction over ranks), writes to the step's scalars on the device
///   grad_norm = sqrt(sum_of_squares)
///   clip_coefficient = min(1, max_grad_norm / (grad_norm + 1e-6)), or 1 if max_grad_norm is 0
/// and sets nonfinite to 1 if the norm is not a finite float32 (a set flag stays set).
struct FinishGradNormArgs {
  Tensor sum_of_squares;  ///< float64 [1]
  StepScalars* scalars = nullptr;
};

void finish_grad_norm(const Context& context, const FinishGradNormArgs& args);

namespace cpu {
void sum_of_squares(const Context& context, const SumOfSquaresArgs& args);
void finish_grad_norm(const Context& context, const FinishGradNormArgs& args);
}  // namespace cpu

namespace cuda {
void sum_of_squares(const Context& context, const SumOfSquaresArgs& args);
void finish_grad_norm(const Context& context, const FinishGradNormArgs& args);
}  // namespace cuda

}  // namespace hone
