// The part of gemm that is compiled once per instruction set: one tile of C, start to end, on one thread.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm/gemm.h"

namespace hone {

/// Rows [row, row + rows) and columns [col, col + cols) of one product's C.
struct GemmTile {
  int64_t row, rows, col, cols;
  bool streams;  ///< C is written past the caches, where that is possible
};

// Sizes in float32 elements of a thread's buffers. One A block, one C tile and the B panels together stay in a 2 MiB
// level-2 cache; a B panel is at most 32 KiB and stays in level 1 while all A panels pass over it.
inline constexpr int64_t kMaxTileRows = 448;
inline constexpr int64_t kMaxTileCols = 512;
inline constexpr int64_t kMaxPanelCols = 32;
inline constexpr int64_t kBlockASize = kMaxTileRows * 4 / 3 * kGemmDepth;  ///< panels of A are padded to whole vectors
inline constexpr int64_t kPanelsBSize = 8 * kMaxPanelCols * kGemmDepth;
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
