#include "ops/moe_experts/int8_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hone {

namespace {

/// Rows without a larger magnitude become zeros: their scale's inverse would overflow.
constexpr float kLeastMagnitude = 1e-30f;

/// Largest magnitude of a row; NaN if any is not finite.
float largest_magnitude(const float* row, int64_t count) {
  float largest = 0.0f, poison = 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(row[i]);
    largest = magnitude > largest ? magnitude : largest;
    poison += row[i] * 0.0f;  // NaN for what is not finite
  }
  return largest + poison;
}

template <class T>
void dequantize(const int8_t* q, const float* scales, int64_t row, int64_t count, int64_t columns, T* to) {
  for (int64_t n = row; n < row + count; ++n) {
    for (int64_t k = 0; k < columns; k += 4, to += 4) {
      const int8_t* from = q + int8_offset(n, k, columns);
      for (int j = 0; j < 4; ++j) to[j] = T(scales[n] * static_cast<float>(from[j]));
    }
  }
}

}  // namespace

bool fits_int8(const Shape& shape) {
  return shape.rank() == 3 && shape[1] % kInt8TileColumns == 0 && shape[2] % kInt8TileColumns == 0;
}

void quantize_panels(const float* rows, int64_t panels, int64_t columns, int8_t* q, float* scales) {
  for (int64_t n = 0; n < panels * kInt8PanelRows; ++n, rows += columns) {
    const float largest = largest_magnitude(rows, columns);
    const float inverse = largest >= kLeastMagnitude ? 127.0f / largest : 0.0f;  // 0, too, for NaN
    scales[n] = largest < kLeastMagnitude ? 0.0f : largest / 127.0f;
    for (int64_t k = 0; k < columns; k += 4) {
      int8_t* to = q + int8_offset(n, k, columns);
      for (int j = 0; j < 4; ++j) {
        const float value = inverse > 0.0f ? std::nearbyint(rows[k + j] * inverse) : 0.0f;
        to[j] = static_cast<int8_t>(std::clamp(value, -127.0f, 127.0f));
      }
    }
  }
}

void dequantize_rows(const int8_t* q, const float* scales, int64_t row, int64_t count, int64_t columns, float* to) {
  dequantize(q, scales, row, count, columns, to);
}
void dequantize_rows(const int8_t* q, const float* scales, int64_t row, int64_t count, int64_t columns, BFloat16* to) {
  dequantize(q, scales, row, count, columns, to);
}

}  // namespace hone
