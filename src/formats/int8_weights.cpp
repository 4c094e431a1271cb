#include "formats/int8_weights.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/error.h"
#include "formats/weight_format.h"

namespace hone {

namespace {

/// Columns of one row in one tile; loops over them have a constant length.
constexpr int kTile = static_cast<int>(kInt8TileColumns);

/// The largest magnitude of a row; not finite if one is not.
float largest_of_row(const float* row, int64_t columns) {
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
    const float largest = largest_of_row(rows, columns);
    const bool finite = std::isfinite(largest), zeros = largest < kLeastInt8Magnitude;
    scales[n] = zeros ? 0.0f : finite ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
    quantize_row(rows, n, columns, zeros || !finite ? 0.0f : 127.0f / largest, q);
  }
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

namespace {

class Int8Format : public WeightFormat {
 public:
  std::string_view name() const override { return "int8"; }
  bool fits(const Shape& shape) const override { return fits_int8(shape); }
  std::string_view sizes() const override { return "multiples of 64"; }
  FormatTensor payload(const Shape& shape, DType) const override { return {shape, DType::kI8}; }
  std::optional<FormatTensor> scales(const Shape& shape) const override {
    return FormatTensor{{shape[0], shape[1]}, DType::kF32};
  }
  bool read_in_place(WeightProduct product, Device device) const override {
    return product == WeightProduct::kExperts && device.kind == DeviceKind::kCpu;
  }
  int64_t rows_together(const Shape&) const override { return kInt8PanelRows; }

  void fill(const EncodedWeight& to, int64_t row, int64_t count, const float* values) const override {
    const int64_t columns = to.shape[-1];
    HONE_ASSERT(row % kInt8PanelRows == 0 && count % kInt8PanelRows == 0);
    quantize_panels(values, count / kInt8PanelRows, columns, to.payload.as<int8_t>() + row * columns,
                    to.scales.as<float>() + row);
  }
  void read(const EncodedWeight& from, int64_t row, int64_t count, float* values) const override {
    dequantize_rows(from.payload.as<int8_t>(), from.scales.as<float>(), row, count, from.shape[-1], values);
  }
};

}  // namespace

const WeightFormat& int8_format() {
  static const Int8Format format;
  return format;
}

}  // namespace hone
