// The part of gemm that is compiled once per instruction set: one tile of C, start to end, on one thread.
#pragma once

#include <cstdint>

#include "ops/gemm/gemm.h"

namespace hone {

/// Rows [row, row + rows) and columns [col, col + cols) of one product's C.
struct GemmTile {
  int64_t row, rows, col, cols;
};

// Sizes in float32 elements of a thread's buffers. One A block, one C tile and two B panels together stay in a 2 MiB
// level-2 cache; a B panel is at most 32 KiB and stays in level 1 while all A panels pass over it.
inline constexpr int64_t kMaxTileRows = 448;
inline constexpr int64_t kMaxTileCols = 512;
inline constexpr int64_t kMaxPanelRows = 16;
inline constexpr int64_t kMaxPanelCols = 64;
inline constexpr int64_t kVectorSlack = 16;  ///< packing stores whole vectors and may run past a panel's end
inline constexpr int64_t kBlockASize = (kMaxTileRows + kMaxPanelRows) * kGemmDepth + kVectorSlack;
inline constexpr int64_t kPanelsBSize = 2 * kMaxPanelCols * kGemmDepth;
inline constexpr int64_t kTileCSize = kMaxTileRows * kMaxTileCols;

/// A thread's buffers, aligned to 64 bytes.
struct GemmWorkspace {
  float* block_a;   ///< [kBlockASize]
  float* panels_b;  ///< [kPanelsBSize]
  float* tile_c;    ///< [kTileCSize]
};

/// The code for one instruction set.
struct TileKernel {
  int64_t panel_rows;  ///< tiles are best cut at multiples of these
  int64_t panel_cols;
  void (*compute)(const GemmArgs& args, const GemmTile& tile, const GemmWorkspace& workspace);
};

extern const TileKernel kTileKernelBaseline;
extern const TileKernel kTileKernelAvx2;
extern const TileKernel kTileKernelAvx512;

}  // namespace hone
