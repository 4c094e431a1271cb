// qk_norm_rope: what happens to queries and keys between their projection and attention: an optional RMSNorm over each
// head, then rotary position embeddings.
#pragma once

#include "graph/tape.h"

namespace hone {

/// Cosines and sines of the angles by position (rope_table.h).
struct RopeTable {
  Tensor cos;  ///< [max_position, rotary_dim / 2] float32
  Tensor sin;  ///< same
};

/// Per token t and head, with x, y of D = head_dim elements, R = rotary_dim and p = positions[t]:
///   z = w · cast(x / sqrt(mean(x²) + eps))   product and cast rounded to the dtype of x; without w: z = x
///   y[i]         = z[i] cos[p, i] − z[i + R/2] sin[p, i]          i < R/2
///   y[i + R/2]   = z[i + R/2] cos[p, i] + z[i] sin[p, i]
///   y[i]         = z[i]                                           i >= R
/// in float32, rounded once to the dtype of y. Sources: Zhang and Sennrich, "Root Mean Square Layer Normalization"
/// (arXiv:1910.07467); Su et al., "RoFormer" (arXiv:2104.09864), dimensions paired as in Hugging Face ("rotate_half").
struct QkNormRopeArgs {
  Tensor x;     ///< [T, heads·D] float32 or bfloat16
  Tensor norm;  ///< w [D] float32 or bfloat16, or undefined
  float eps = 0;
  RopeTable table;
  Tensor positions;  ///< [T] int32, below max_position: others are an assertion on a CPU, angles of NaN on a GPU
  int64_t head_dim = 0;
  Tensor y;  ///< [T, heads·D], dtype of x; may be x
};

/// dx of the above, and dw when asked for. The norm's statistics are computed again from x. dw is summed over chunks of
/// rows whose size does not depend on the number of threads, in their order.
struct QkNormRopeBackwardArgs {
  QkNormRopeArgs forward;  ///< y unused; x may be undefined without norm
  Tensor dy;               ///< [T, heads·D], dtype of x
  GradDest dx;             ///< dtype of x; may be unwanted
  GradDest dnorm;          ///< [D] float32; may be unwanted
};

void qk_norm_rope(const Context& context, const QkNormRopeArgs& args);
void qk_norm_rope_backward(const Context& context, const QkNormRopeBackwardArgs& args);

/// Records y = rope(norm(x)); x is [T, heads·head_dim]. `norm` may be null. Table and positions outlive the tape.
/// Backward saves x if there is a norm, else nothing.
Var qk_norm_rope(Tape& tape, Var x, Weight* norm, float eps, const RopeTable& table, Tensor positions, int head_dim);

namespace cpu {
void qk_norm_rope(const Context& context, const QkNormRopeArgs& args);
void qk_norm_rope_backward(const Context& context, const QkNormRopeBackwardArgs& args);
}  // namespace cpu

namespace cuda {
void qk_norm_rope(const Context& context, const QkNormRopeArgs& args);
void qk_norm_rope_backward(const Context& context, const QkNormRopeBackwardArgs& args);
}  // namespace cuda

}  // namespace hone
