// One task of a product of an expert's rows with its weight on AMX: packing, multiplying, and the epilogue while
// accumulators are in L1.
//
// C[rows, columns] = A[rows, k] x W[k, columns] + L[rows, j] x F[j, columns], where L and F are the low-rank part of
// adapters. A's rows are packed once and stay in L2. k is divided into blocks of kBlockDepth: two panels of W stay in
// L1 while the rows are streamed, and the next ones are prefetched. Some columns of all rows are finished at a time,
// since rows of C are far apart in memory.
//
// An element of C is one chain of tile products in increasing k, the adapters' last; so it depends only on its row of A
// and its column of W.
//
// W may be stored in tiles, which are read in place or transposed (tiled_weights.h).
//
// W may be int8 (int8_weights.h). Then A's rows are also rounded to int8, with a scale for each row and block of
// kInt8BlockDepth, as W has for each row. The products of a block are exact integers, which are scaled and added to
// float32 sums. The adapters' part uses the unrounded A.
//
// W may be packed (formats/packed_weights.h). Its codes become bfloat16 tiles block by block (packed_panels_amx.h), and
// bits are those of W unpacked in advance. Where rows of W are columns of C, tiles have rows of W as their rows, since
// blocks of codes lie along them: they are the left operands, and sums are transposed once they are complete.
//
// Measured on sixteen virtual CPUs of an H100 host, 2026-11-22, `hone bench ops --device cpu`, 32 experts of 1,024 x
// 512: 3.5 to 5.3 TFLOP/s in bfloat16; AMX reaches 14.4 from registers. A layer with LoRA, forward and backward, 2,048
// tokens: 128 experts of 2,048 x 768, 4.6 TFLOP/s in bfloat16, 7.0 with int8 weights; 256 of 7,168 x 2,048, 3.2 and
// 6.0, reading 45 and 23 GB of weights. Raw: bench/results/cpu-amx-16.jsonl.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/gemm/amx_tiles.h"
#include "kernels/cpu/row_math/row_math.h"

namespace hone {
struct PackedLayout;
}

namespace hone::amx {

/// A float32 or bfloat16 matrix, usable by code compiled for any instruction set.
struct Values {
  const void* data = nullptr;
  bool is_bf16 = false;
  int64_t row_stride = 0;
};

/// A row of finished sums: columns [col, col + count) of C, and in `second` as many from col + TileTask::pair_offset if
/// a strip's panels are not adjacent. The sums may be overwritten.
struct FinishedRow {
  int64_t expert, row, col, count;
  float *sums, *second;
};
using FinishRow = void (*)(const void* context, const FinishedRow& row);

/// A low-rank factor of an adapter, which connects features [begin, begin + count) of C's columns or of k with columns
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
  /// L = A x P with these factors P; without them L is read from `rows`, whose lanes are rows of C.
  const LowRankFactor* projections = nullptr;
  int64_t projection_count = 0;
  Operand rows;
  /// Destination of L = A x P, [rows of C, depth], or null.
  void* stored = nullptr;
  bool stored_as_bf16 = false;
};

struct TileTask {
  int64_t expert = 0;  ///< passed to `finish`
  Operand rows;        ///< lanes are rows of C
  /// Lanes are columns of C, a multiple of 16. int8 elements have the order of int8_weights.h, but the strides of a
  /// plain matrix; columns and depth are multiples of 64.
  Operand weight;
  /// For bfloat16: the elements have the order of tiled_weights.h, but the strides of a plain matrix; columns and depth
  /// are multiples of 32.
  bool weight_in_tiles = false;
  /// Codes in place of weight.data, whose strides tell the orientation: the matrices of the expert one after another
  /// (formats/packed_weights.h). Columns and depth are multiples of 32, and so are the rows of each matrix.
  const PackedLayout* packed = nullptr;
  const std::byte* chunks = nullptr;
  /// Scales of int8 weights, for each column of C or for each k.
  const float* column_scales = nullptr;
  const float* depth_scales = nullptr;
  int64_t depth = 0;           ///< k
  int64_t row = 0, count = 0;  ///< lanes of `rows`
  /// The workspace already has these rows, and their L, from a task of other columns. Only if chunk_depth() is the
  /// whole depth.
  bool rows_packed = false;
  int64_t strips = 0;         ///< number of strips, each two panels of columns
  int64_t col = 0;            ///< first column of the first strip
  int64_t strip_stride = 32;  ///< columns from one strip to the next
  int64_t pair_offset = 16;   ///< columns from a strip's first panel to its second
  LowRank low_rank;
  FinishRow finish = nullptr;
  const void* context = nullptr;
  /// Replaces `finish` if strips' panels are adjacent: C as bfloat16.
  uint16_t* c = nullptr;
  int64_t ldc = 0;  ///< elements between rows of C
};

inline constexpr int64_t kStripLanes = 32;
inline constexpr int64_t kBlockDepth = 512;
inline constexpr int64_t kInt8BlockDepth = 1024;
inline constexpr int64_t kBlockSteps = 16;  ///< tiles of a block, for both formats
/// Strips that are packed together, so that several lines of a row of W are read at a time; tasks should be multiples
/// of it.
inline constexpr int64_t kStripsTogether = 4;
/// Limits of a task: rows; and accumulators, if its rows have more tiles than are packed together.
inline constexpr int64_t kMaxTaskRows = 512;
inline constexpr int64_t kMaxRowTiles = 768;
inline constexpr int64_t kMaxTaskSums = 256 * 512;

/// The best maximum of rows for a task of this shape: if W is already packed, as many as are packed together for all of
/// k, since reading W again costs less than packing rows again.
int64_t most_rows(const TileTask& shape);

/// How much of k a task of this shape with `rows` rows packs at a time.
int64_t chunk_depth(const TileTask& shape, int64_t rows);

/// Workspace of a task of this shape in bytes, 64-byte aligned.
int64_t workspace_bytes(const TileTask& shape);
void run_tiles(const TileTask& task, std::byte* workspace);
/// As run_tiles(), for int8 weights, on a thread whose tiles are configured.
void run_int8_tiles(const TileTask& task, std::byte* workspace);

}  // namespace hone::amx
