// Shared by forward and backward of the state-space scan on a CPU: the rows of one chunk, and the update of the state
// along a document.
#pragma once

#include "kernels/cpu/float_stack.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/row_math/row_math.h"
#include "ops/ssd_scan/ssd_scan.h"

namespace hone::cpu {

/// Δ and g of one token and head.
struct SsdStep {
  float delta, g;
  float slope;  ///< derivative of Δ with respect to dt
};
SsdStep ssd_step(const SsdScanArgs& args, int64_t token, int64_t head);

float ssd_element(const Tensor& tensor, int64_t i);
/// Elements [begin, begin + n) in float32.
void load_ssd_row(const Tensor& tensor, int64_t begin, float* to, int64_t n);

/// A block of heads of one group.
struct SsdHeadBlock {
  int64_t group, first, count;
  int64_t index;  ///< within the group
};
/// Block i of num_groups · blocks().
SsdHeadBlock ssd_head_block(const SsdHeads& heads, int64_t i);

inline MatrixView ssd_rows(const float* values, int64_t width) { return {.data = values, .row_stride = width}; }

/// B and C of a group in one chunk, in float32.
struct SsdKeys {
  float *b, *c;     ///< [n, N]
  float* products;  ///< C Bᵀ [n, n], rows kSsdChunk apart

  SsdKeys(const SsdHeads& heads, FloatStack& memory);
  void load(const SsdScanArgs& args, int64_t group, int64_t row, int64_t n);
};

/// A head in one chunk. Matrices [n, n] have rows kSsdChunk apart.
struct SsdChunk {
  int64_t n = 0;
  SsdStep steps[kSsdChunk];
  float grown[kSsdChunk];   ///< exp(G_i)
  float to_end[kSsdChunk];  ///< exp(G_last − G_i)
  float* x;                 ///< [n, P]
  float* v;                 ///< V [n, P]
  float* decay;             ///< exp(G_i − G_j), j <= i
  float* p;                 ///< P [n, n], 0 above the diagonal

  SsdChunk(const SsdHeads& heads, FloatStack& memory);
  void load(const SsdScanArgs& args, const SsdKeys& keys, int64_t head, int64_t row, int64_t rows);
  /// state ← exp(G_last) state + Σ exp(G_last − G_i) B_i V_iᵀ; the old state is zero if `first`. `scaled` [n, P] is
  /// overwritten.
  void advance(const SsdHeads& heads, const SsdKeys& keys, float* state, bool first, float* scaled) const;

  float end_growth() const { return grown[n - 1]; }
};

}  // namespace hone::cpu
