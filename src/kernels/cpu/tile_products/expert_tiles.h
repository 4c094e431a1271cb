// One task of a product of an expert's rows with its weight on AMX: packing, multiplying, and the epilogue, while
// accumulators are in the first-level cache.
//
// C[rows, columns] = A[rows, k] x W[k, columns] + L[rows, j] x F[j, columns], with L and F the low-rank factors of
// adapters. A's rows are packed once and stay in the level-2 cache. k is cut in blocks of kBlockDepth: two panels of W
// stay in level 1 while the rows pass by, and the next ones are prefetched. Some columns of whole rows are finished at
// a time, since rows of C lie far apart in memory.
//
// An element of C is one chain of tile products in rising k, the adapters' last; so it depends on its row of A and its
// column of W alone.
//
// W may be stored in tiles, which are read in place or transposed (tiled_weights.h).
//
// W may be int8 (int8_weights.h). A's rows are then rounded to int8, too, a scale for each row and block of
// kInt8BlockDepth, as W's are for each row; the products of a block are exact integers, which are scaled and added to
// float32 sums. The adapters' part uses the unrounded A.
//
// Sixteen virtual CPUs of an H100 host, 2026-11-22, `hone bench ops --device cpu`, 32 experts of 1,024 x 512: 3.5 to
// 5.3 TFLOP/s in bfloat16, of 14.4 that AMX reaches in registers. A layer with LoRA, forward and backward, 2,048
// tokens: 128 experts of 2,048 x 768, 4.6 TFLOP/s in bfloat16, 7.0 with int8 weights; 256 of 7,168 x 2,048, 3.2 and
// 6.0, reading 45 and 23 GB of weights. Raw: bench/results/cpu-amx-16.jsonl.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/gemm/amx_tiles.h"
#include "kernels/cpu/row_math/row_math.h"

namespace hone::amx {

/// A float32 or bfloat16 matrix as compiled code of any instruction set may hold it.
struct Values {
  const void* data = nullptr;
  bool is_bf16 = false;
  int64_t row_stride = 0;
};

/// A row of finished sums: columns [col, col + count) of C, and in `second` as many from col + TileTask::pair_offset
/// where a strip's panels are not neighbours. The sums may be overwritten.
struct FinishedRow {
  int64_t expert, row, col, count;
  float *sums, *second;
};
using FinishRow = void (*)(const void* context, const FinishedRow& row);

/// A low-rank factor of an adapter: it joins features [begin, begin + count), of C's columns or of k, with columns
/// [rank_begin, rank_begin + rank) of L.
struct LowRankFactor {
  Values values;
  bool features_first = false;  ///< values are [count, rank], else [rank, count]
  int64_t begin = 0, count = 0;
  int64_t rank_begin = 0, rank = 0;
  float scale = 1.0f;
};

/// The adapters' part of a product. All factors of an array have the same features_first.
struct LowRank {
  int64_t depth = 0;                       ///< j; 0: none
  const LowRankFactor* factors = nullptr;  ///< F
  int64_t factor_count = 0;
  /// L = A x P, of these factors P; without them it is read from `rows`, whose lanes are rows of C.
  const LowRankFactor* projections = nullptr;
  int64_t projection_count = 0;
  Operand rows;
  /// [rows of C, depth] where L = A x P is stored, or null.
  void* stored = nullptr;
  bool stored_as_bf16 = false;
};

struct TileTask {
  int64_t expert = 0;  ///< passed to `finish`
  Operand rows;        ///< lanes are rows of C
  /// Lanes are columns of C, a multiple of 16. The elements of int8 are laid out as int8_weights.h says, though strides
  /// are a plain matrix's; columns and depth are multiples of 64.
  Operand weight;
  /// Of bfloat16: the elements are laid out as tiled_weights.h says, though strides are a plain matrix's; columns and
  /// depth are multiples of 32.
  bool weight_in_tiles = false;
  /// A scale of int8 weights for each column of C, or for each k.
  const float* column_scales = nullptr;
  const float* depth_scales = nullptr;
  int64_t depth = 0;           ///< k
  int64_t row = 0, count = 0;  ///< lanes of `rows`
  /// The workspace holds these rows, and L for them, from a task of other columns. Only if chunk_depth() is the whole
  /// depth.
  bool rows_packed = false;
  int64_t strips = 0;         ///< of two panels of columns
  int64_t col = 0;            ///< of the first strip
  int64_t strip_stride = 32;  ///< from a strip's columns to the next's
  int64_t pair_offset = 16;   ///< from a strip's first panel to its second
  LowRank low_rank;
  FinishRow finish = nullptr;
  const void* context = nullptr;
  /// Instead of `finish`, where strips' panels are neighbours: C as bfloat16.
  uint16_t* c = nullptr;
  int64_t ldc = 0;  ///< elements from a row of C to the next
};

inline constexpr int64_t kStripLanes = 32;
inline constexpr int64_t kBlockDepth = 512;
inline constexpr int64_t kInt8BlockDepth = 1024;
inline constexpr int64_t kBlockSteps = 16;  ///< tiles of a block, of either
/// Strips that are packed together, so that a row of W is read several lines at a time; tasks are best cut so.
inline constexpr int64_t kStripsTogether = 4;
/// Limits of a task: rows; and accumulators, if its rows have more tiles than are packed at one time.
inline constexpr int64_t kMaxTaskRows = 512;
inline constexpr int64_t kMaxRowTiles = 768;
inline constexpr int64_t kMaxTaskSums = 256 * 512;

/// The most rows that a task of this shape is best given: if W is packed already, no more than are packed for all of k
/// at one time, since reading W once more for others costs less than packing rows again.
int64_t most_rows(const TileTask& shape);

/// How much of k a task of this shape, with so many rows, packs at one time.
int64_t chunk_depth(const TileTask& shape, int64_t rows);

/// Bytes that a task of this shape needs, 64-byte aligned.
int64_t workspace_bytes(const TileTask& shape);
void run_tiles(const TileTask& task, std::byte* workspace);
/// The same for int8 weights, on a thread whose tiles are configured.
void run_int8_tiles(const TileTask& task, std::byte* workspace);

}  // namespace hone::amx
