// The part of gemm that is compiled once per instruction set: computes one tile of C on one thread.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm/gemm.h"

namespace hone {

/// Rows [row, row + rows) and columns [col, col + cols) of one product's C.
struct GemmTile {
  int64_t row, rows, col, cols;
  bool streams;  ///< C is written with non-temporal stores if possible
};

// Sizes of a thread's buffers in float32 elements. One A block, one C tile and the B panels together fit in a 2 MiB L2
// cache; a B panel has at most 32 KiB and stays in L1 while all A panels are multiplied with it.
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

/// The kernel for one instruction set.
struct TileKernel {
  int64_t panel_rows;  ///< tile sizes should be multiples of these
  int64_t panel_cols;
  void (*compute)(const GemmArgs& args, const GemmTile& tile, const GemmWorkspace& workspace);
};

extern const TileKernel kTileKernelBaseline;
extern const TileKernel kTileKernelAvx2;
extern const TileKernel kTileKernelAvx512;

}  // namespace hone
