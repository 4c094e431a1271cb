// linear_cross_entropy: the LM head. Computes logits of supervised tokens, their cross-entropy, and its gradients, in
// chunks of rows, so that the full logits never exist.
#pragma once

#include "kernels/lora_dropout.h"
#include "tape/step_scalars.h"
#include "tape/tape.h"

namespace hone {

/// The supervised rows of x [T, H] and their targets. S is known on the host and may be 0 (then the tensors may be
/// undefined). Entries from `present` on are padding, which makes launches for different numbers of tokens equal: they
/// have weight 0, any target in [0, V), and rows without real tokens (all may be the same). They are not counted. A
/// target outside [0, V) is a bug: an assertion on a CPU; on a GPU the loss and its gradients become NaN.
struct SupervisedTokens {
  Tensor rows = {};     ///< i32 [S]: rows of x, each at most once
  Tensor targets = {};  ///< i32 [S]: token ids in [0, V)
  Tensor weights = {};  ///< float32 [S]: loss weights
  Tensor present = {};  ///< i32 [1]: number of tokens before the padding; undefined: S

  int64_t count() const { return rows.shape.rank() == 0 ? 0 : rows.shape[0]; }
};

/// Default size of a chunk of logits in bytes; a chunk has at least one row. Chunks of this size read the weight, and
/// add to its gradient, rarely enough for the products to dominate: with a vocabulary of 151,936 they have 1024 rows of
/// float32 on a CPU and 4096 rows of bfloat16 on a GPU.
constexpr int64_t default_logits_bytes(DeviceKind device) {
  return device == DeviceKind::kCpu ? int64_t{5} << 27 : int64_t{5} << 28;
}

/// For each supervised token s with row t = rows[s]:
///   logits[v] = logit_scale · (x[t] · w[v] + scaling · xa[t] · lora_b[v]), with a soft cap c put through c · tanh(· /
///   c) loss      = log Σ_v exp(logits[v]) - Σ_v q[v] · logits[v]                    nats dlogits   = (softmax(logits)
///   - q) · weight · inv_loss_weight
/// with q = onehot(target), or smoothed by ε: q[v] = (1 - ε) · onehot(target)[v] + ε / V, so that
///   loss      = (1 - ε) · (-log p[target]) + ε · mean over v of (-log p[v]),  p = softmax(logits)
/// and from them
///   totals += {Σ weight · loss, Σ weight, number of tokens whose target has the largest logit (of equal ones
///              the first), Σ entropy of softmax(logits), number of tokens}, in float64, in a fixed order of s
///   dx[t] = dlogits W,  dw = dlogitsᵀ x,  dxa[t] = scaling · dlogits B,  dlora_b = scaling · dlogitsᵀ xa,
/// each times logit_scale, and dlogits times 1 - (logits / c)² in them. x [T, H]; w [V, H], lora_b [V, r]; each float32
/// or bfloat16; xa [T, r] float32 (from ops/linear). Float32 arithmetic; sums over V use float32 partial sums that are
/// added in float64; deterministic. A loss, a row of dx and of dxa depend only on their row of x; dw and dlora_b sum
/// over s chunk by chunk. Source of the smoothing: Szegedy et al., "Rethinking the Inception Architecture"
/// (arXiv:1512.00567), section 7, with means as in Hugging Face's LabelSmoother; of the cap: Gemma 2
/// (arXiv:2408.00118), section 2. If x is bfloat16: on a GPU, and on a CPU with AMX, dlogits and the other operands of
/// the products are rounded to bfloat16. On a GPU logits are rounded, too (after the adapter's product, again after
/// adding the base product, and after the cap), and a loss may depend on the size of the chunk.
struct LinearCrossEntropyArgs {
  Tensor x, w;
  Tensor xa = {}, lora_b = {};  ///< undefined without an adapter
  float scaling = 0;
  float logit_scale = 1.0f;
  float soft_cap = 0;         ///< c; 0: none
  float label_smoothing = 0;  ///< ε, in [0, 1)
  SupervisedTokens tokens;
  const StepScalars* scalars = nullptr;  ///< device: inv_loss_weight
  LossTotals* totals = nullptr;          ///< device memory, added to; may be null
  Tensor token_loss = {};                ///< float32 [S]: the unweighted losses; may be undefined
  Tensor dx = {};                        ///< [T, H] in x's dtype, zero for unsupervised rows; undefined if unwanted.
                                         ///< lora_down_grad() adds the adapter's part, and rounds again
  Tensor dxa = {};                       ///< [T, r] float32, as dx
  GradDest dw, dlora_b;
  int64_t max_logits_bytes = 0;  ///< 0: default_logits_bytes(); a chunk has at least one row

  bool wants_grad() const { return dx.defined() || dxa.defined() || dw.wanted() || dlora_b.wanted(); }
};

void linear_cross_entropy(const Context& context, const LinearCrossEntropyArgs& args);

/// The tokens of the loss and the destinations of its sums; all must outlive the tape.
struct CrossEntropyLoss {
  SupervisedTokens tokens;
  const StepScalars* scalars = nullptr;
  LossTotals* totals = nullptr;
  Tensor token_loss = {};           ///< may be undefined
  float logit_scale = 1.0f;         ///< 1 / logits_scaling of Granite
  float soft_cap = 0;               ///< final_logit_softcapping of Gemma; 0: none
  float label_smoothing = 0;        ///< ε, in [0, 1)
  LoraDropoutContext dropout = {};  ///< rows of x, for an adapter with dropout
  int64_t max_logits_bytes = 0;     ///< as in LinearCrossEntropyArgs
};

/// Records the loss, where the gradient starts. On a training tape, forward also computes the wanted ones of dX, dXA,
/// dW and dB: dX and dXA are kept until backward passes them on, dW and dB are written to their destinations
/// immediately. Otherwise it computes only the loss. `adapter` may be null.
void linear_cross_entropy(Tape& tape, Var x, Weight& w, const Adapter* adapter, const CrossEntropyLoss& loss);

namespace cpu {
void linear_cross_entropy(const Context& context, const LinearCrossEntropyArgs& args);
}

namespace cuda {
void linear_cross_entropy(const Context& context, const LinearCrossEntropyArgs& args);
}

}  // namespace hone
