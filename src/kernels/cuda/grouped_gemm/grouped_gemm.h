// grouped_gemm: matrix products of experts on a GPU: rows sorted by group, one weight per group, group offsets in
// device memory. Tensor-level launchers shared by CUDA ops; for CPUs see kernels/cpu/gemm.
#pragma once

#include "core/base/tensor.h"
#include "core/stream/context.h"
#include "tape/weight.h"

namespace hone::cuda {

/// Rows [offsets[e], offsets[e + 1]) belong to group e. The host only has the number of rows that there may be. Rows
/// from offsets[E] on belong to no group: indices of theirs are not used, and results of theirs are undefined.
struct RowGroups {
  Tensor offsets;    ///< i64 [E + 1]; offsets[0] = 0, offsets[E] <= rows
  int64_t rows = 0;  ///< R
  int64_t groups() const { return offsets.shape[0] - 1; }
};

/// Weights of groups in 8-bit floats (formats/fp8.h), K-major: e4m3 codes of matrices [rows, columns], which follow
/// each other, each with a scale. A group is `matrices` of them: 1, or 2 whose rows are its N, gate and up.
struct Fp8Stack {
  Tensor codes = {};  ///< the first one's, u8
  int64_t rows = 0, columns = 0;
  int64_t matrices = 1;
  int64_t matrix_bytes = 0;       ///< from a matrix to the next; a multiple of 16
  const float* scales = nullptr;  ///< the matrices', in device memory; null: 1
  int64_t scale_pitch = 0;        ///< floats from one to the next

  bool defined() const { return rows > 0; }
};

/// Whether products of 8-bit floats can have these columns, and a group's matrices these rows, on the context's GPU:
/// one of tier sm90, and multiples of 128.
bool takes_fp8_groups(const Context& context, int64_t rows, int64_t columns, int64_t groups);

/// For row r of group e, with a(r) = a_rows[r] (or r if a_rows is undefined):
///   c[r, n] = Σ_k a[a(r), k] · w(e)[n, k] + Σ_j extra_a[r, j] · extra_w(e)[n, j]
/// where w(e)[n, k] = w[e, n, k], or w[e, k, n] with w_transposed. Float32 accumulators, rounded once to the dtype of
/// c. bfloat16 (wgmma on Hopper, mma.sync from 8.0 on) or float32 (FMA, never tf32); all operands have one dtype. The
/// extra product is a low-rank adapter, added as extra steps along k.
struct GroupedGemmArgs {
  RowGroups groups;
  Tensor a;            ///< [·, K]
  Tensor a_rows = {};  ///< i32 [R]
  Tensor w;            ///< [E, N, K], or [E, K, N] with w_transposed
  bool w_transposed = false;
  Tensor extra_a = {};  ///< [R, J], J <= 128 a multiple of 8, or undefined
  Tensor extra_w = {};  ///< [E, N, J]
  Tensor c;             ///< [R, N]
  /// [R, N / 2] or undefined: silu(c[r, n]) · c[r, N / 2 + n], computed from the rounded c, rounded once more.
  Tensor activation = {};
  /// In 8-bit floats, in place of w, without extra_*: a is u8 [·, K] with float32 scales of its rows. Sums stay in the
  /// tensor cores for all of k.
  Fp8Stack fp8 = {};
  Tensor a_scales = {};
  /// In a pass of generation few rows of each group may go to a kernel that adds along k in an order of its own
  /// (grouped_few_rows.h).
  bool decode = false;
};
void grouped_gemm(const Context& context, const GroupedGemmArgs& args);

/// The gradient of the second expert product and of the activation, in one pass (expert outputs are not kept). For row
/// r with token t = token[r], choice c = assignment[r], s = weights[c], (g, u) = (h[r, i], h[r, I + i]):
///   dact[i]      = Σ_k dout[t, k] · w[e, k, i] + Σ_j extra_a[r, j] · extra_w[e, i, j]      float32
///   act[i]       = silu(g) · u
///   dweights[c]  = Σ_i dact[i] · act[i]               fixed order
///   dh[r, i]     = s · dact[i] · u · dsilu(g),  dh[r, I + i] = s · dact[i] · silu(g)
///   scaled_act[r, i] = s · act[i]                      the left operand of dw
struct GroupedDswigluArgs {
  RowGroups groups;
  Tensor token, assignment;           ///< i32 [R]
  Tensor dout;                        ///< [T, H]
  Tensor w;                           ///< [E, H, I]
  Tensor extra_a = {}, extra_w = {};  ///< [R, J], [E, I, J] or undefined
  Tensor h;                           ///< [R, 2I]
  Tensor weights;                     ///< [T, k]
  Tensor dh;                          ///< [R, 2I]; may be h
  Tensor scaled_act = {};             ///< [R, I] or undefined
  Tensor dweights = {};               ///< f32 [T, k] or undefined
  Fp8Stack fp8 = {};                  ///< wᵀ, [I, H] for each group: as in GroupedGemmArgs
  Tensor dout_scales = {};            ///< f32 [T]; dout is u8 then
};
void grouped_dswiglu(const Context& context, const GroupedDswigluArgs& args);

/// The weight gradient of each group: dw[e, m, n] = Σ_{r of e} a[a(r), m] · b[b(r), n] + beta · dw[e, m, n], summed in
/// float32 in a fixed order of rows. A group without rows gets zeros (beta 0) or keeps its values (beta 1).
struct GroupedWgradArgs {
  RowGroups groups;
  Tensor a;            ///< [·, M]
  Tensor a_rows = {};  ///< i32 [R] or undefined
  Tensor b;            ///< [·, N]
  Tensor b_rows = {};  ///< i32 [R] or undefined
  GradDest dw;         ///< [E, M, N] f32; or bf16 with beta 0, rounded to nearest
};
void grouped_wgrad(const Context& context, const GroupedWgradArgs& args);

}  // namespace hone::cuda
