// Shared by forward and backward of the gated delta rule on a CPU: the rows of one chunk, and the update of the state
// along a document.
#pragma once

#include "kernels/cpu/float_stack.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/row_math/row_math.h"
#include "ops/gated_delta_rule/gated_delta_rule.h"

namespace hone::cpu {

/// β and g of one token and value head, and a derivative for their gradients.
struct DeltaGate {
  float beta, g;
  float dg_da;  ///< −exp(A_log) sigmoid(a + dt_bias)
};
DeltaGate delta_gate(const DeltaRuleArgs& args, int64_t token, int64_t head);

/// Queries and keys of a key head in one chunk, normalised, in float32.
struct DeltaKeys {
  float* q;                                              ///< [n, Dk], scaled
  float* k;                                              ///< [n, Dk]
  float q_inverse[kDeltaChunk], k_inverse[kDeltaChunk];  ///< 1 / norm of the raw rows

  DeltaKeys(const DeltaRuleArgs& args, FloatStack& memory);
  void load(const DeltaRuleArgs& args, int64_t key_head, int64_t row, int64_t n);
};

/// A value head in one chunk. Matrices [n, n] have rows kDeltaChunk apart.
struct DeltaChunk {
  int64_t n = 0;
  float beta[kDeltaChunk];
  float grown[kDeltaChunk];   ///< exp(G_i)
  float to_end[kDeltaChunk];  ///< exp(G_last − G_i)
  float* v;                   ///< [n, Dv]
  float* decay;               ///< exp(G_i − G_j), j <= i
  float* b;                   ///< k_i·k_j exp(G_i − G_j), j < i: A without β
  float* fresh;               ///< V [n, Dv]

  DeltaChunk(const DeltaRuleArgs& args, FloatStack& memory);

  /// Computes all members; `state` [Dk, Dv] is the state before the chunk, or null for zeros.
  void load(const DeltaRuleArgs& args, const DeltaKeys& keys, int64_t head, int64_t row, int64_t rows,
            const float* state);
  /// state ← exp(G_last) state + Σ exp(G_last − G_i) k_i V_iᵀ; the old state is zero if `first`.
  void advance(const DeltaRuleArgs& args, const DeltaKeys& keys, float* state, bool first, float* scaled) const;
  /// p [n, n] = q_i·k_j exp(G_i − G_j), j <= i, else 0.
  void scores(const DeltaRuleArgs& args, const DeltaKeys& keys, float* p) const;

  float end_growth() const { return grown[n - 1]; }
};

/// to[i, :] = factor[i] · from[i, :], rows of `width`.
void scale_rows(const float* factor, const float* from, float* to, int64_t rows, int64_t width);

inline MatrixView rows_of(const float* values, int64_t width) { return {.data = values, .row_stride = width}; }

}  // namespace hone::cpu
