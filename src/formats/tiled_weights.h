// Frozen bfloat16 weights, mostly of experts, in the order in which AMX reads its right operands, so that no product
// packs them again: tiles of 16 rows x 32 columns (a KiB each),
//   [N / 16][K / 32][16 pairs of columns][16 rows][2 columns]
// for each matrix. 16 rows of W are one panel, its tiles in rising k, in place of the rows. The tensor keeps its shape,
// [E, N, K] or [N, K].
#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/tensor.h"

namespace hone {

class ThreadPool;

inline constexpr int64_t kTilePanelRows = 16;
inline constexpr int64_t kTileColumns = 32;

/// Whether a matrix [N, K] or a stack [E, N, K] fits, for products along either side: N (which may hold gate and up) a
/// multiple of 64, K of 32.
bool fits_tiles(const Shape& shape);

/// Whether products of bfloat16 rows with such a frozen weight are faster in tiles: bfloat16 on a CPU with AMX in use.
bool gains_from_tiles(Device device, DType dtype, const Shape& shape);

/// Offset of element (n, k) of a matrix [N, K], in elements from its first. A row of a tile has 64 bytes, 4 of each row
/// of W: 2 columns of bfloat16, 4 of int8.
constexpr int64_t tile_offset(int64_t n, int64_t k, int64_t columns, int64_t element_bytes = 2) {
  const int64_t group = 4 / element_bytes, width = kTilePanelRows * group;
  const int64_t tile = n / kTilePanelRows * (columns / width) + k / width;
  return (tile * kTilePanelRows + k % width / group) * width + n % kTilePanelRows * group + k % group;
}

/// Reorders bfloat16 rows of one matrix or a stack in place, on the threads of a pool.
void order_as_tiles(ThreadPool& pool, const Tensor& weight);

}  // namespace hone
