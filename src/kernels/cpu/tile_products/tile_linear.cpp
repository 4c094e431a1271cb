#include "kernels/cpu/tile_products/tile_linear.h"

#include "kernels/cpu/row_math/row_blocks.h"
#include "kernels/cpu/tile_products/tile_product.h"

namespace hone::cpu {

void tile_linear(ThreadPool& pool, const Tensor& a, const Tensor& weight, bool columns_first, const GradDest& c) {
  int64_t offsets[] = {0, a.shape[0]};
  const Tensor of_one{reinterpret_cast<std::byte*>(offsets), DType::kI64, {2}, a.device};
  const std::vector<ExpertAdapterView> none;
  const WeightView stack{weight.reshaped({1, weight.shape[0], weight.shape[1]}), &tile_format()};
  const TileFactor factor{.weight = stack, .columns_first = columns_first, .adapters = &none};
  TileProduct product(of_one, {a}, factor, {});
  if (c.beta == 0.0f) return product.store(pool, c.dst);
  const RowMath& math = row_math();
  product.run(pool, [&](const amx::FinishedRow& row) {
    float buffer[kRowBlock];
    for_row_blocks(row.count, [&](int64_t i, int64_t n) {
      const int64_t at = row.row * c.dst.shape[1] + row.col + i;
      math.add(row.sums + i, load_block(math, c.dst, at, buffer, n), row.sums + i, n);
      store_block(math, static_cast<const float*>(row.sums + i), c.dst, at, n);
    });
  });
}

}  // namespace hone::cpu
