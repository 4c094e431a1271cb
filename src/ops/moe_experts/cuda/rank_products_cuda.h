// Products with the J narrow columns of expert adapters in bfloat16, on the tensor cores of GPUs from 8.0 on. Each is
// bound by reading its wide rows once, so a tile has all of J. CUDA only.
//
// Tuned for 128 experts of 2048 x 768, ranks of 16 and 131,072 rows. One H200, 2026-11-22, `hone bench ops --op moe`:
// the experts of a layer with LoRA r16 on a frozen base, forward and backward, 6.77 ms, 366 model TFLOP/s
// (bench/results/h200-moe-layer.json).
#pragma once

#include "ops/moe_experts/cuda/expert_rows_cuda.h"

namespace hone::cuda {

/// Columns [begin, begin + rank) of J, which belong to one adapter; begin is a multiple of 8.
struct RankSlice {
  int64_t begin = 0, rank = 0;
  /// u8 [R, mask_stride(n)] or undefined. Bit i of byte b of a row: whether feature 8 b + i of the adapter's input is
  /// kept.
  Tensor mask = {};
};

/// Bytes of a mask row: a multiple of 16.
constexpr int64_t mask_stride(int64_t features) { return (features + 127) / 128 * 16; }

constexpr int64_t kMaxRankColumns = 64;
constexpr size_t kMaxRankSlices = 4;

/// Whether the products below support J columns with rows of `widths` elements.
bool rank_products_fit(const Context& context, DType dtype, int64_t columns, size_t slices,
                       std::initializer_list<int64_t> widths);

/// c[r, j] = Σ_k (m ∘ a(r))[k] · factor[e, j, k], with m the mask of the adapter of column j. Writes all columns.
struct RankRowsArgs {
  RowGroups groups;
  Tensor a;            ///< [·, K]
  Tensor a_rows = {};  ///< i32 [R] or undefined
  Tensor factor;       ///< [E, J, K]
  const std::vector<RankSlice>& slices;
  Tensor c;  ///< [R, J]
};
void rank_rows(const Context& context, const RankRowsArgs& args);

/// The destination of an adapter's gradient; see RankGradientArgs.
struct RankGradientDest {
  GradDest dest;
  float scale = 1.0f;
  int64_t first = 0, count = 0;  ///< range of columns of b
};

/// dest[e, j, n] (or [e, n, j] with ranks_last) = scale · Σ_{r of e} thin[r, begin + j] · (m ∘ b(r))[first + n] + beta
/// · dest, for each adapter whose gradient is wanted; j < rank, n < count. Fixed order of rows.
struct RankGradientArgs {
  RowGroups groups;
  Tensor thin;         ///< [R, J]
  Tensor b;            ///< [·, N]
  Tensor b_rows = {};  ///< i32 [R] or undefined
  const std::vector<RankSlice>& slices;
  const std::vector<RankGradientDest>& dests;
  bool ranks_last = false;
};
void rank_gradient(const Context& context, const RankGradientArgs& args);

/// dst[r, n] += Σ over adapters m ∘ Σ_j thin[r, j] · factor[e, n, j]; float32 sums, rounded once.
struct RankSumArgs {
  RowGroups groups;
  Tensor thin;    ///< [R, J]
  Tensor factor;  ///< [E, N, J]
  const std::vector<RankSlice>& slices;
  Tensor dst;  ///< [R, N]
};
void add_rank_sum(const Context& context, const RankSumArgs& args);

}  // namespace hone::cuda
