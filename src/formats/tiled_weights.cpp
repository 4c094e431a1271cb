#include "formats/tiled_weights.h"

#include <array>
#include <cstring>
#include <vector>

#include "core/base/error.h"
#include "core/cpu/cpu_features.h"
#include "core/cpu/thread_pool.h"
#include "formats/weight_format.h"

namespace hone {

namespace {

/// Two neighbours of a row.
using Pair = std::array<BFloat16, 2>;

class TileFormat : public WeightFormat {
 public:
  std::string_view name() const override { return "tiles"; }
  bool fits(const Shape& shape) const override { return fits_tiles(shape); }
  std::string_view sizes() const override { return "multiples of 64 and of 32"; }
  FormatTensor payload(const Shape& shape, DType) const override { return {shape, DType::kBF16}; }
  bool read_in_place(WeightProduct, Device device) const override {
    return device.kind == DeviceKind::kCpu && active_isa() == Isa::kAmx;
  }
  int64_t rows_together(const Shape&) const override { return kTilePanelRows; }

  void fill(const EncodedWeight& to, int64_t row, int64_t count, const float* values) const override {
    const int64_t columns = to.shape[-1];
    HONE_ASSERT(row % kTilePanelRows == 0 && count % kTilePanelRows == 0);
    for (int64_t n = 0; n < count; ++n) {
      for (int64_t k = 0; k < columns; ++k) {
        to.payload.as<BFloat16>()[tile_offset(row + n, k, columns)] = BFloat16(values[n * columns + k]);
      }
    }
  }
  void read(const EncodedWeight& from, int64_t row, int64_t count, float* values) const override {
    const int64_t columns = from.shape[-1];
    for (int64_t n = 0; n < count; ++n) {
      for (int64_t k = 0; k < columns; ++k) {
        values[n * columns + k] = static_cast<float>(from.payload.as<BFloat16>()[tile_offset(row + n, k, columns)]);
      }
    }
  }
};

}  // namespace

const WeightFormat& tile_format() {
  static const TileFormat format;
  return format;
}

bool fits_tiles(const Shape& shape) {
  const bool is_matrix = shape.rank() == 2 || shape.rank() == 3;
  return is_matrix && shape[-2] % (2 * kTileColumns) == 0 && shape[-1] % kTileColumns == 0;
}

bool gains_from_tiles(Device device, DType dtype, const Shape& shape) {
  return dtype == DType::kBF16 && fits_tiles(shape) && tile_format().read_in_place(WeightProduct::kLinear, device);
}

void order_as_tiles(ThreadPool& pool, const Tensor& weight) {
  HONE_ASSERT(weight.dtype == DType::kBF16 && fits_tiles(weight.shape));
  const int64_t columns = weight.shape[-1], panel = kTilePanelRows * columns;
  pool.parallel_for(weight.numel() / panel, [&](int64_t i, int) {
    thread_local std::vector<Pair> rows;
    rows.resize(static_cast<size_t>(panel / 2));
    BFloat16* to = weight.as<BFloat16>() + i * panel;
    std::memcpy(rows.data(), to, rows.size() * sizeof(Pair));
    for (int64_t pair = 0; pair < columns / 2; ++pair) {
      for (int64_t row = 0; row < kTilePanelRows; ++row, to += 2) {
        std::memcpy(to, &rows[static_cast<size_t>(row * columns / 2 + pair)], sizeof(Pair));
      }
    }
  });
}

}  // namespace hone
