#include "kernels/cpu/tile_products/tile_linear.h"

#include "kernels/cpu/row_math/row_blocks.h"
#include "kernels/cpu/tile_products/tile_product.h"

namespace hone::cpu {

void tile_linear(ThreadPool& pool, const Tensor& a, const Tensor& weight, bool columns_first, const ProductTerms& terms,
                 const GradDest& c) {
  int64_t offsets[] = {0, a.shape[0]};
  const Tensor of_one{reinterpret_cast<std::byte*>(offsets), DType::kI64, {2}, a.device};
  const std::vector<ExpertAdapterView> none;
  const WeightView stack{weight.reshaped({1, weight.shape[0], weight.shape[1]}), &tile_format()};
  const TileFactor factor{.weight = stack, .columns_first = columns_first, .adapters = &none};
  TileProduct product(of_one, {a}, factor, {});
  const Tensor before = c.beta != 0.0f ? c.dst : Tensor{};
  if (!terms.bias.defined() && !before.defined() && !terms.addend.defined()) return product.store(pool, c.dst);
  const RowMath& math = row_math();
  product.run(pool, [&](const amx::FinishedRow& row) {
    float buffer[kRowBlock];
    for_row_blocks(row.count, [&](int64_t i, int64_t n) {
      float* const sums = row.sums + i;
      const int64_t column = row.col + i, at = row.row * c.dst.shape[1] + column;
      const auto add = [&](const Tensor& term, int64_t from) {
        if (term.defined()) math.add(sums, load_block(math, term, from, buffer, n), sums, n);
      };
      add(terms.bias, column);
      add(before, at);
      add(terms.addend, at);
      store_block(math, static_cast<const float*>(sums), c.dst, at, n);
    });
  });
}

}  // namespace hone::cpu
