// mlp_activation: the activation of dense MLPs, y = glu(gate) · up or, without a gate, y = glu(h).
#pragma once

#include "kernels/mlp_activation.h"
#include "tape/tape.h"

namespace hone {

/// y[i] = round(glu(gate[i])) · up[i] of the function (kernels/mlp_activation.h). All are [T, I] with the same dtype,
/// float32 or bfloat16, to which round rounds (as Hugging Face's MLPs do); the arithmetic is float32. Without a gate
/// y[i] = round(glu(gate[i])), where `gate` is h. Deterministic. A function with a clamp is for experts alone.
struct MlpActivationArgs {
  MlpActivation function;
  Tensor gate, up, y;
  int64_t pitch = 0;  ///< elements between rows of gate and up (the halves of one tensor); 0: I
};

void mlp_activation(const Context& context, const MlpActivationArgs& args);

/// dgate[i] = glu'(gate[i]) · dy[i] · up[i],   dup[i] = dy[i] · round(glu(gate[i])); without a gate only the first,
/// without up. Either is optional; the destinations have the dtype of gate.
struct MlpActivationGradArgs {
  MlpActivation function;
  Tensor gate, up, dy;
  GradDest dgate, dup;
  int64_t pitch = 0;  ///< as above; also for dgate and dup
};

void mlp_activation_grad(const Context& context, const MlpActivationGradArgs& args);

/// Records y of gate and up; backward saves both.
Var mlp_activation(Tape& tape, const MlpActivation& function, Var gate, Var up);
/// As above, for h [T, function.columns(I)], whose rows have gate, then up.
Var mlp_activation(Tape& tape, const MlpActivation& function, Var h);

namespace cpu {
void mlp_activation(const Context& context, const MlpActivationArgs& args);
void mlp_activation_grad(const Context& context, const MlpActivationGradArgs& args);
}  // namespace cpu

namespace cuda {
void mlp_activation(const Context& context, const MlpActivationArgs& args);
void mlp_activation_grad(const Context& context, const MlpActivationGradArgs& args);
}  // namespace cuda

}  // namespace hone
