#include "formats/int8_weights.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/thread_pool.h"

namespace hone {

namespace {

/// Columns of one row that lie in one tile; loops over them have a length that compilers know.
constexpr int kTile = static_cast<int>(kInt8TileColumns);

/// The largest magnitude of a row; not finite if one is not.
float largest_magnitude(const float* row, int64_t columns) {
  // Without their sign, floats are ordered as the whole numbers of their bits are, infinity and NaN above all.
  std::array<int32_t, kTile> largest = {};
  for (int64_t k = 0; k < columns; k += kTile) {
    for (int j = 0; j < kTile; ++j) {
      largest[static_cast<size_t>(j)] =
          std::max(largest[static_cast<size_t>(j)], std::bit_cast<int32_t>(row[k + j]) & INT32_MAX);
    }
  }
  return std::bit_cast<float>(*std::max_element(largest.begin(), largest.end()));
}

/// A row of a tile: 4 columns of each group, groups 16 rows apart.
constexpr int kGroupBytes = 4 * static_cast<int>(kInt8PanelRows);

void quantize_row(const float* row, int64_t n, int64_t columns, float inverse, int8_t* q) {
  constexpr float kOnes = 0x1.8p23f;  // a sum with it is rounded to a whole number, which its lowest bits are
  std::array<int8_t, kTile> values;
  for (int64_t k = 0; k < columns; k += kTile) {
    for (int j = 0; j < kTile; ++j) {
      values[static_cast<size_t>(j)] = static_cast<int8_t>(std::bit_cast<int32_t>(row[k + j] * inverse + kOnes));
    }
    int8_t* tile = q + int8_offset(n, k, columns);
    for (int j = 0; j < kTile; j += 4) std::memcpy(tile + j / 4 * kGroupBytes, values.data() + j, 4);
  }
}

}  // namespace

bool fits_int8(const Shape& shape) {
  return shape.rank() == 3 && shape[1] % kInt8TileColumns == 0 && shape[2] % kInt8TileColumns == 0;
}

void quantize_panels(const float* rows, int64_t panels, int64_t columns, int8_t* q, float* scales) {
  for (int64_t n = 0; n < panels * kInt8PanelRows; ++n, rows += columns) {
    const float largest = largest_magnitude(rows, columns);
    const bool finite = std::isfinite(largest), zeros = largest < kLeastInt8Magnitude;
    scales[n] = zeros ? 0.0f : finite ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
    quantize_row(rows, n, columns, zeros || !finite ? 0.0f : 127.0f / largest, q);
  }
}

void quantize_expert(ThreadPool& pool, const Tensor& matrix, const Tensor& q, const Tensor& scales) {
  const int64_t columns = matrix.shape[1];
  pool.parallel_for(matrix.shape[0] / kInt8PanelRows, [&](int64_t panel, int) {
    const int64_t row = panel * kInt8PanelRows;
    quantize_panels(matrix.as<float>() + row * columns, 1, columns, q.as<int8_t>() + row * columns,
                    scales.as<float>() + row);
  });
}

void dequantize_rows(const int8_t* q, const float* scales, int64_t row, int64_t count, int64_t columns, float* to) {
  std::array<int8_t, kTile> values;
  for (int64_t n = row; n < row + count; ++n) {
    const float scale = scales[n];
    for (int64_t k = 0; k < columns; k += kTile, to += kTile) {
      const int8_t* tile = q + int8_offset(n, k, columns);
      for (int j = 0; j < kTile; j += 4) std::memcpy(values.data() + j, tile + j / 4 * kGroupBytes, 4);
      for (int j = 0; j < kTile; ++j) to[j] = scale * static_cast<float>(values[static_cast<size_t>(j)]);
    }
  }
}

}  // namespace hone
