// The AMX part of attention: blocks of scores in tile registers, and the elementwise steps between the products.
// Operands are packed by kernels/cpu/gemm/amx_tiles.h, whose tiles hold 16 lanes x 32 k. A slab is 32 rows (tokens) of
// a head: two panels if rows are lanes, one step of k if the product sums over rows.
//
// Measured on sixteen virtual CPUs of an H100 host, 2026-11-22, `hone bench ops --device cpu --op attention`, 1 x 2048,
// 16/4 heads of 64: forward 4.4, backward 3.7 TFLOP/s; AMX reaches 14.4 from registers. Raw:
// bench/results/cpu-amx-16.jsonl.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/gemm/amx_tiles.h"

namespace hone::amx {

inline constexpr int64_t kSlab = 32;
static_assert(kSlab == 2 * kLanes && kSlab == kDepth);

/// Keys that attend() multiplies with a panel of queries at a time.
inline constexpr int64_t kKeysAtOnce = 256;
/// Tokens of a block of queries and of a block of keys in differentiate().
inline constexpr int64_t kGradTokens = 128;

/// Positions of query rows and the keys they attend to: row r is a query at position first_query + r / group, and
/// attends to keys j of its sequence with position − window < j <= position (window 0: no lower bound).
struct QueryRows {
  int64_t rows, first_query, group, window;
};

/// A block of queries against all keys they attend to. Scores are base-2 exponents: scale · log2(e) · q·k.
struct AttendBlock {
  QueryRows queries;
  const std::byte* q;  ///< [panels of rows][steps of D] tiles
  const std::byte* k;  ///< [slabs of the sequence][2 panels of keys][steps of D] tiles of pairs
  const std::byte* v;  ///< [slabs of the sequence][panels of Dv] tiles of pairs
  int64_t d_steps;     ///< steps of 32 elements
  int64_t v_panels;    ///< panels of 16 elements; even
  float scale;         ///< including log2(e); positive
  float* scores;       ///< scratch [kSlab, kKeysAtOnce]
  float* out;          ///< [rows rounded up to kSlab][16 v_panels] Σ 2^(score − largest) v
  float* largest;      ///< [rows] largest scores
  float* sums;         ///< [rows][16] parts of Σ 2^(score − largest)
};

/// The relative error of exp is below 2^-18; probabilities are rounded to bfloat16 for the product with v, not in the
/// sums.
void attend(const AttendBlock& block);

/// out = block.out / sum for one row, rounded to bfloat16: `dim` elements. Returns the sum.
float finish_row(const AttendBlock& block, int64_t row, uint16_t* out, int64_t dim);

/// One head's block of at most kGradTokens queries (group 1) against a block of as many keys; both start at the first
/// row of a slab. Null gradients are not computed.
struct GradBlock {
  QueryRows queries;
  int64_t first_key, keys;
  int64_t d_steps, v_steps;                   ///< steps of 32 elements
  float scale;                                ///< including log2(e)
  const std::byte *q, *dout;                  ///< [panels of rows][steps] tiles
  const std::byte *q_columns, *dout_columns;  ///< [slabs][panels of elements] tiles with columns as lanes
  const std::byte *k, *v;                     ///< [slabs][2 panels of keys][steps] tiles of pairs
  const std::byte* k_rows;                    ///< [slabs][panels of elements] tiles of pairs
  const float *lse, *delta;                   ///< [rows]
  float* dq;       ///< [slabs][2 panels of rows][panels of elements] tiles of float32: Σ dS k, not scaled
  float *dk, *dv;  ///< [slabs][panels of elements][2 panels of keys]: Σ dSᵀ q and Σ Pᵀ dout, transposed
  bool first_of_queries, first_of_keys;  ///< nothing has been added to dq, to dk and dv
  std::byte* scratch;                    ///< kGradScratch bytes
};
inline constexpr int64_t kGradScratch =
    2 * kSlab * kGradTokens * 4 + kSlab * kGradTokens * 2 + 2 * kGradTokens * kGradTokens * 2;

void differentiate(const GradBlock& block);

/// Destination of a slab of sums: rows [rows, dim], `stride` elements apart; to = scale · sums + beta · to.
struct GradRows {
  void* to;
  bool is_bf16;
  int64_t stride, rows, dim;
  float scale, beta;
};
void store_rows(const float* dq_slab, const GradRows& rows);
void store_columns(const float* dk_slab, const GradRows& rows);

/// Σ x · y of two rows of bfloat16.
float dot(const uint16_t* x, const uint16_t* y, int64_t n);

}  // namespace hone::amx
