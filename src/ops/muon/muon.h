// muon: one update of matrices by orthogonalised momentum. Sources: Jordan et al., "Muon: An optimizer for hidden
// layers in neural networks" (kellerjordan.github.io/posts/muon, 2024); Liu et al., "Muon is Scalable for LLM Training"
// (arXiv:2502.16982) for kMatchRmsAdamw; order of operations as in torch.optim.Muon (2.9).
#pragma once

#include <vector>

#include "core/stream/context.h"
#include "tape/step_scalars.h"

namespace hone {

/// The factor of the learning rate for a matrix [rows, columns].
enum class MuonRate {
  kOriginal,       ///< √max(1, rows / columns)
  kMatchRmsAdamw,  ///< 0.2 · √max(rows, columns): the root mean square of a step is about that of AdamW
};

/// Consecutive matrices [rows, columns] with their state; all tensors have the same number of elements.
struct MuonTensor {
  Tensor parameter;          ///< float32: the master weight, or the parameter itself; bfloat16: the parameter itself
  Tensor working_copy = {};  ///< bfloat16 copy of a float32 parameter to refresh, or undefined
  Tensor m;                  ///< float32 or bfloat16, zero before the first step
  Tensor gradient;           ///< float32 or bfloat16
  int64_t rows = 0, columns = 0;
  /// Whether operands of products may be rounded to bfloat16, as in torch; a CPU with AMX does so.
  bool may_round = false;
  uint32_t stream_id = 0;  ///< separates this tensor's random numbers from all others
  /// Index of the first element in a larger tensor of which these are a part, a multiple of 256; random numbers are
  /// those of the larger tensor.
  int64_t first_element = 0;
};

/// For each matrix, in float32, with the step's scalars (lr, clip) read on the device:
///   g = gradient · clip_coefficient
///   m = m + (g - m) · (1 - momentum)
///   x = m; with Nesterov momentum: g + (m - g) · momentum
///   x = x / max(‖x‖_F, eps)
///   `steps` times, with x transposed if rows > columns:
///     a = x xᵀ;  x = 3.4445 · x + (-4.7750 · a + 2.0315 · a a) x
///   p = p · (1 - lr · weight_decay) - lr · rate · x
///   working_copy = round(p)
/// The iteration maps singular values from 0.01 to 1 to about 0.7 to 1.2. torch keeps x and a in bfloat16; here they
/// are float32.
///
/// bfloat16 values are stored with stochastic rounding (stochastic_rounding.h), with random numbers that depend on the
/// step's seed, the tensor's stream_id and the element; the parameter's update uses the unrounded moment. Nothing is
/// written if the step's nonfinite flag is set. Deterministic, and independent of other matrices. CPU only.
struct MuonArgs {
  std::vector<MuonTensor> tensors;
  const StepScalars* scalars = nullptr;
  double momentum = 0.95;
  bool nesterov = true;
  int steps = 5;
  double eps = 1e-7;
  MuonRate rate = MuonRate::kOriginal;
  double rate_factor = 1;  ///< factor of the step's learning rate
  double weight_decay = 0;
};

void muon(const Context& context, const MuonArgs& args);

namespace cpu {
void muon(const Context& context, const MuonArgs& args);
}

}  // namespace hone
