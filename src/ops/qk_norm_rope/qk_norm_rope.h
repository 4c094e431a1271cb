// qk_norm_rope: the step of queries and keys between projection and attention: an optional RMSNorm over each head, then
// RoPE on all or a part of the head.
#pragma once

#include <array>

#include "ops/rms_norm/norm_weighting.h"
#include "tape/tape.h"

namespace hone {

/// Cosines and sines of the angles by position (rope_table.h).
struct RopeTable {
  Tensor cos;  ///< [max_position, rotary_dim / 2] float32
  Tensor sin;  ///< same
};

/// The rotated dimensions of a head, and their pairing. R = rotary_dim of the table.
struct RotaryLayout {
  int64_t offset = 0;        ///< the first rotated dimension; offset + R <= D
  bool interleaved = false;  ///< pair i is (offset + 2i, offset + 2i + 1); else (offset + i, offset + i + R/2)
};

/// Per token t and head, with x, y of D = head_dim elements and p = positions[t]:
///   z = w · cast(x / sqrt(mean(x²) + eps))   product and cast rounded to the dtype of x; without w: z = x;
///                                            with NormWeighting::kFromOne: z = cast((1 + w) · x / sqrt(…)),
///                                            with kOnce: z = cast(w · x / sqrt(…))
///   y[a] = z[a] cos[p, i] − z[b] sin[p, i]   for each pair i = (a, b) of the layout, i < R/2
///   y[b] = z[b] cos[p, i] + z[a] sin[p, i]
///   y[j] = z[j]                              outside [offset, offset + R)
/// in float32, rounded once to the dtype of y. Sources: Zhang and Sennrich, "Root Mean Square Layer Normalization"
/// (arXiv:1910.07467); Su et al., "RoFormer" (arXiv:2104.09864), whose pairs are interleaved; Hugging Face's
/// "rotate_half" pairs the halves.
struct QkNormRopeArgs {
  Tensor x;     ///< [T, heads·D] float32 or bfloat16
  Tensor norm;  ///< w [D] float32 or bfloat16, or undefined
  float eps = 0;
  RopeTable table;
  Tensor positions;  ///< [T] int32, below max_position; others: assertion on a CPU, NaN angles on a GPU
  int64_t head_dim = 0;
  RotaryLayout layout;
  Tensor y;  ///< [T, heads·D], dtype of x; may be x
  NormWeighting weighting = NormWeighting::kPlain;
};

/// dx of the above, and dw if wanted. The norm's statistics are recomputed from x. dw is summed over chunks of rows, in
/// order, whose size does not depend on the number of threads.
struct QkNormRopeBackwardArgs {
  QkNormRopeArgs forward;  ///< y unused; x may be undefined without norm
  Tensor dy;               ///< [T, heads·D], dtype of x
  GradDest dx;             ///< dtype of x; may be unwanted
  GradDest dnorm;          ///< [D] float32; may be unwanted
};

/// The same of queries and of keys, which share all but x, the norm and y.
struct QkNormRopePairArgs {
  QkNormRopeArgs q, k;
};

void qk_norm_rope(const Context& context, const QkNormRopeArgs& args);
void qk_norm_rope_pair(const Context& context, const QkNormRopePairArgs& args);
void qk_norm_rope_backward(const Context& context, const QkNormRopeBackwardArgs& args);

/// Records y = rope(norm(x)); x is [T, heads·head_dim]. `norm` may be null. Table and positions must outlive the tape.
/// Backward saves x if there is a norm, else nothing.
Var qk_norm_rope(Tape& tape, Var x, Weight* norm, float eps, const RopeTable& table, Tensor positions, int64_t head_dim,
                 const RotaryLayout& layout = {}, NormWeighting weighting = NormWeighting::kPlain);

/// Queries and keys, and their norms.
using QkVars = std::array<Var, 2>;
using QkNorms = std::array<Weight*, 2>;

/// The same of queries and keys: one node of a tape that does not train, which a GPU computes in one kernel.
QkVars qk_norm_rope(Tape& tape, QkVars x, QkNorms norms, float eps, const RopeTable& table, Tensor positions,
                    int64_t head_dim, const RotaryLayout& layout = {}, NormWeighting weighting = NormWeighting::kPlain);

namespace cpu {
void qk_norm_rope(const Context& context, const QkNormRopeArgs& args);
void qk_norm_rope_pair(const Context& context, const QkNormRopePairArgs& args);
void qk_norm_rope_backward(const Context& context, const QkNormRopeBackwardArgs& args);
}  // namespace cpu

namespace cuda {
void qk_norm_rope(const Context& context, const QkNormRopeArgs& args);
void qk_norm_rope_pair(const Context& context, const QkNormRopePairArgs& args);
void qk_norm_rope_backward(const Context& context, const QkNormRopeBackwardArgs& args);
}  // namespace cuda

}  // namespace hone
