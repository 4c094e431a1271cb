// gated_delta_rule: linear attention with a gated decay of the state, which is updated by the delta rule. Source: Yang,
// Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule" (arXiv:2412.06464); gates and scales
// as in Hugging Face's Qwen3-Next and Qwen3.5.
//
// Training processes chunks of kDeltaChunk tokens of one document. With G_i the sum of g up to token i of the chunk, S
// the state before it, and rows q_i, k_i, v_i:
//   A_ij = β_i k_i·k_j exp(G_i − G_j),  j < i           P_ij = q_i·k_j exp(G_i − G_j),  j <= i
//   R_i  = β_i (v_i − exp(G_i) Sᵀk_i)                   (I + A) V = R
//   out  = exp(G) q S + P V                             S ← exp(G_last) S + Σ_i exp(G_last − G_i) k_i V_iᵀ
#pragma once

#include "ops/packed_sequences.h"
#include "tape/tape.h"

namespace hone {

/// Tokens of a chunk; the last one of a document may have fewer.
inline constexpr int64_t kDeltaChunk = 64;

struct DeltaHeads {
  int64_t num_key_heads = 0;    ///< Hk
  int64_t num_value_heads = 0;  ///< Hv, a multiple of Hk: value head h uses key head h / (Hv / Hk)
  int64_t key_dim = 0;          ///< Dk
  int64_t value_dim = 0;        ///< Dv

  int64_t group() const { return num_value_heads / num_key_heads; }
  /// Columns of queries, keys and values together.
  int64_t width() const { return 2 * num_key_heads * key_dim + num_value_heads * value_dim; }
  bool operator==(const DeltaHeads&) const = default;
};

/// States of N sequences, for generation; sequence n has had lengths[n] tokens (0: its state is treated as zeros,
/// whatever its contents).
struct DeltaState {
  Tensor s;        ///< [N, Hv, Dk, Dv] float32; undefined: documents begin with zeros
  Tensor lengths;  ///< [N] int32
};

/// Per token t of a document and value head h, with raw rows q, k (of its key head) and v of qkv:
///   q_t = Dk^-½ q / sqrt(Σ q² + 1e-6)             k_t = k / sqrt(Σ k² + 1e-6)
///   g_t = −exp(A_log) softplus(a + dt_bias)       β_t = sigmoid(b)
///   S ← exp(g_t) S;   S ← S + k_t (β_t (v_t − Sᵀk_t))ᵀ;   out_t = Sᵀq_t
/// with S [Dk, Dv] zero before the document's first token. Documents are independent.
/// States, gates and sums are float32; for bfloat16 on a GPU with tensor cores, operands of products are rounded to
/// bfloat16. Chunks start at the document's first token, so results of a document do not depend on its pack. With a
/// state, sequences continue token by token, so results do not depend on how tokens are divided into passes. Results do
/// not depend on the number of threads.
/// bfloat16 heads of 128 use tensor-core kernels with T · Hv · 656 bytes of scratch; otherwise scratch is constant per
/// thread.
struct DeltaRuleArgs {
  Tensor qkv;      ///< [T, Hk·Dk | Hk·Dk | Hv·Dv] float32 or bfloat16
  Tensor a;        ///< [T, Hv], dtype of qkv
  Tensor b;        ///< [T, Hv], dtype of qkv
  Tensor a_log;    ///< [Hv] of either dtype
  Tensor dt_bias;  ///< [Hv] of either dtype
  Tensor out;      ///< [T, Hv·Dv], dtype of qkv
  DeltaHeads heads;
  PackedSequences sequences;
  DeltaState state = {};
};

/// Gradients of the above without a state, each optional: dqkv, da, db in the dtype of qkv, those of a_log and dt_bias
/// in float32. Only the inputs are saved; states are recomputed, one per chunk except the first. dA_log and ddt_bias
/// are summed in a fixed order. Scratch: on a GPU those states, (T / 64) Hv Dk Dv float32 elements, and a constant per
/// CTA; for the tensor-core kernels T · Hv · 2064 bytes; on a CPU the states of the longest document for each thread.
struct DeltaRuleGradArgs {
  DeltaRuleArgs forward;  ///< out unused
  Tensor dout;            ///< [T, Hv·Dv], dtype of qkv
  GradDest dqkv, da, db, da_log, ddt_bias;
};

void gated_delta_rule(const Context& context, const DeltaRuleArgs& args);
void gated_delta_rule_grad(const Context& context, const DeltaRuleGradArgs& args);

struct DeltaRuleInputs {
  Var qkv, a, b;
  Weight* a_log = nullptr;
  Weight* dt_bias = nullptr;
};

/// Records out. Backward saves qkv, a and b. With a state (generation) there is no backward.
Var gated_delta_rule(Tape& tape, const DeltaRuleInputs& inputs, const DeltaHeads& heads,
                     const PackedSequences& sequences, const DeltaState& state = {});

namespace cpu {
void gated_delta_rule(const Context& context, const DeltaRuleArgs& args);
void gated_delta_rule_grad(const Context& context, const DeltaRuleGradArgs& args);
}  // namespace cpu

namespace cuda {
void gated_delta_rule(const Context& context, const DeltaRuleArgs& args);
void gated_delta_rule_grad(const Context& context, const DeltaRuleGradArgs& args);
}  // namespace cuda

}  // namespace hone
