// Frozen weights of experts in 8 bits: W[e, n, k] = scale[e, n] · q[e, n, k], with q in [-127, 127].
//
// scale[e, n] = max_k |W[e, n, k]| / 127 and q is rounded to nearest, ties to even; a row of zeros
// (magnitudes below 1e-30) has scale 0; a row with an infinity or NaN has scale NaN, which results computed from it
// show.
//
// The elements of an expert are stored as AMX reads its right operands, in tiles of 16 rows x 64 columns (a KiB each):
//   q [N / 16][K / 64][16 groups of 4 columns][16 rows][4 columns],
// so that 16 rows of W are one panel, its tiles in rising k. The tensor keeps the shape [E, N, K], of dtype int8.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/tensor.h"
#include "formats/tiled_weights.h"

namespace hone {

inline constexpr int64_t kInt8PanelRows = kTilePanelRows;
inline constexpr int64_t kInt8TileColumns = 64;
/// Rows without a larger magnitude are rounded to zeros: the inverse of their scale would overflow.
inline constexpr float kLeastInt8Magnitude = 1e-30f;

/// Whether a stack [E, N, K] fits, for products along either side: N and K multiples of 64.
bool fits_int8(const Shape& shape);

/// Offset of element (n, k) of an expert's [N, K], in bytes from its first.
constexpr int64_t int8_offset(int64_t n, int64_t k, int64_t columns) { return tile_offset(n, k, columns, 1); }

/// Panels of 16 rows from float32 rows [16 · panels, columns] to `q` (int8, panels follow one another) and
/// scales [16 · panels]. Pure; safe from any thread.
void quantize_panels(const float* rows, int64_t panels, int64_t columns, int8_t* q, float* scales);

/// Rows [row, row + count) of an expert's [N, K] as float32, rounded to nearest: scale · q.
void dequantize_rows(const int8_t* q, const float* scales, int64_t row, int64_t count, int64_t columns, float* to);

}  // namespace hone
