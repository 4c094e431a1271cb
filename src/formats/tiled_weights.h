// Frozen weights, of experts above all, in bfloat16 and the order in which AMX reads its right operands, so that no
// product of a step packs them again: tiles of 16 rows x 32 columns (a KiB each),
//   [N / 16][K / 32][16 pairs of columns][16 rows][2 columns]
// for each matrix. 16 rows of W are one panel, its tiles in rising k, where the rows themselves would lie. The tensor
// keeps its shape, [E, N, K] or [N, K].
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/tensor.h"

namespace hone {

class ThreadPool;

inline constexpr int64_t kTilePanelRows = 16;
inline constexpr int64_t kTileColumns = 32;

/// Whether a matrix [N, K] or a stack [E, N, K] can lie so, whichever of its sides is multiplied along: N, which may be
/// those of gate and up, a multiple of 64, and K of 32.
bool fits_tiles(const Shape& shape);

/// Whether products of bfloat16 rows with such a frozen weight read it so, and faster: bfloat16 on a CPU whose AMX is
/// in use.
bool gains_from_tiles(Device device, DType dtype, const Shape& shape);

/// Where element (n, k) of a matrix [N, K] lies, in elements from its first. A row of a tile has 64 bytes, 4 of each
/// row of W: as many columns as those are elements.
constexpr int64_t tile_offset(int64_t n, int64_t k, int64_t columns, int64_t element_bytes = 2) {
  const int64_t group = 4 / element_bytes, width = kTilePanelRows * group;
  const int64_t tile = n / kTilePanelRows * (columns / width) + k / width;
  return (tile * kTilePanelRows + k % width / group) * width + n % kTilePanelRows * group + k % group;
}

/// Reorders bfloat16 rows of one matrix or a stack where they lie, on the threads of a pool.
void order_as_tiles(ThreadPool& pool, const Tensor& weight);

}  // namespace hone
