#include "formats/tiled_weights.h"

#include <array>
#include <cstring>
#include <vector>

#include "core/cpu_features.h"
#include "core/error.h"
#include "core/thread_pool.h"

namespace hone {

namespace {

/// Two neighbours of a row.
using Pair = std::array<BFloat16, 2>;

}  // namespace

bool fits_tiles(const Shape& shape) {
  const bool is_matrix = shape.rank() == 2 || shape.rank() == 3;
  return is_matrix && shape[-2] % (2 * kTileColumns) == 0 && shape[-1] % kTileColumns == 0;
}

bool gains_from_tiles(Device device, DType dtype, const Shape& shape) {
  return device.kind == DeviceKind::kCpu && dtype == DType::kBF16 && active_isa() == Isa::kAmx && fits_tiles(shape);
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
