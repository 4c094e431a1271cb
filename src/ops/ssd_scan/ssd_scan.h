// ssd_scan: the state-space scan of Mamba-2. Source: Dao and Gu, "Transformers are SSMs: Generalized Models and
// Efficient Algorithms Through Structured State Space Duality" (arXiv:2405.21060); step sizes as in Hugging Face's
// classes.
//
// Training processes chunks of tokens of one document. With G_i the sum of g up to token i of the chunk, S the state
// before it, and V_i = Δ_i x_i:
//   P_ij = C_i·B_j exp(G_i − G_j), j <= i               out = exp(G) C S + P V + D x
//   S ← exp(G_last) S + Σ_i exp(G_last − G_i) B_i V_iᵀ
#pragma once

#include <limits>

#include "ops/packed_sequences.h"
#include "tape/tape.h"

namespace hone {

/// Tokens of a chunk on a CPU and, in bfloat16, on a GPU; the last one of a document may have fewer.
inline constexpr int64_t kSsdChunk = 64;
/// Heads of one group that share the products of a chunk.
inline constexpr int64_t kSsdHeadBlock = 4;

inline constexpr int64_t kMaxSsdHeadDim = 64, kMaxSsdState = 128;

struct SsdHeads {
  int64_t num_heads = 0;   ///< H
  int64_t head_dim = 0;    ///< P <= kMaxSsdHeadDim
  int64_t num_groups = 0;  ///< G divides H: head h has B and C of group h / (H / G)
  int64_t state_size = 0;  ///< N <= kMaxSsdState
  /// Bounds of a step Δ.
  float min_step = 0, max_step = std::numeric_limits<float>::infinity();

  int64_t inner() const { return num_heads * head_dim; }
  /// Columns of B, or of C.
  int64_t keys() const { return num_groups * state_size; }
  /// Columns of x, B and C together.
  int64_t width() const { return inner() + 2 * keys(); }
  int64_t group() const { return num_heads / num_groups; }
  /// Blocks of at most kSsdHeadBlock heads in a group.
  int64_t blocks() const { return (group() + kSsdHeadBlock - 1) / kSsdHeadBlock; }
  bool operator==(const SsdHeads&) const = default;
};

/// States of several sequences, for generation; sequence n has had lengths[n] tokens (0: its state is treated as zeros,
/// whatever its contents).
struct SsdState {
  Tensor s;        ///< [sequences, H, N, P] float32; undefined: documents begin with zeros
  Tensor lengths;  ///< [sequences] int32
};

/// Per token t of a document and head h, with x of the head, B and C of its group, and raw steps dt:
///   Δ_t = clamp(softplus(dt + dt_bias), min_step, max_step)        g_t = −exp(A_log) Δ_t
///   S ← exp(g_t) S + Δ_t B_t x_tᵀ;   out_t = Sᵀ C_t + D x_t
/// with S [N, P] zero before the document's first token. Documents are independent.
/// States, steps, decays and sums are float32. On a GPU's tensor cores (bfloat16, heads of kMaxSsdHeadDim, states of
/// kMaxSsdState) one operand of a product may be rounded to bfloat16, once (ssd_chunks_cuda.h). Chunks start at the
/// document's first token, so results of a document do not depend on its pack. With a state, sequences continue token
/// by token, so results do not depend on how tokens are divided into passes. Results do not depend on the number of
/// threads. Scratch: a constant per thread on a CPU; on a GPU T · inner · N / R elements for chunks of R tokens,
/// bfloat16 on tensor cores, else float32 (R: 64 in bfloat16, 32 in float32), and four numbers per token and head.
struct SsdScanArgs {
  Tensor xbc;      ///< [T, H·P | G·N | G·N] float32 or bfloat16: x, B, C
  Tensor dt;       ///< [T, H], dtype of xbc
  Tensor a_log;    ///< [H] of either dtype
  Tensor dt_bias;  ///< [H] of either dtype
  Tensor d;        ///< [H] of either dtype
  Tensor out;      ///< [T, H·P], dtype of xbc
  SsdHeads heads;
  PackedSequences sequences;
  SsdState state = {};
};

/// Gradients of the above without a state, each optional: dxbc and ddt in the dtype of xbc, those of a_log, dt_bias and
/// d in float32. A step at a bound has the slope of softplus, one beyond it none. Only the inputs are saved; states are
/// recomputed, one per chunk except the first. Every sum has a fixed order. Scratch: as above (on a GPU also the
/// gradients of states), and T · 2GN float32 sums for each block of heads; on tensor cores those only if there are
/// several blocks, and 13 float32 numbers per token and head.
struct SsdScanGradArgs {
  SsdScanArgs forward;  ///< out unused
  Tensor dout;          ///< [T, H·P], dtype of xbc
  GradDest dxbc, ddt, da_log, ddt_bias, dd;
};

void ssd_scan(const Context& context, const SsdScanArgs& args);
void ssd_scan_grad(const Context& context, const SsdScanGradArgs& args);

struct SsdInputs {
  Var xbc, dt;
  Weight* a_log = nullptr;
  Weight* dt_bias = nullptr;
  Weight* d = nullptr;
};

/// Records out. Backward saves xbc and dt. With a state (generation) there is no backward.
Var ssd_scan(Tape& tape, const SsdInputs& inputs, const SsdHeads& heads, const PackedSequences& sequences,
             const SsdState& state = {});

namespace cpu {
void ssd_scan(const Context& context, const SsdScanArgs& args);
void ssd_scan_grad(const Context& context, const SsdScanGradArgs& args);
}  // namespace cpu

namespace cuda {
void ssd_scan(const Context& context, const SsdScanArgs& args);
void ssd_scan_grad(const Context& context, const SsdScanGradArgs& args);
}  // namespace cuda

}  // namespace hone
