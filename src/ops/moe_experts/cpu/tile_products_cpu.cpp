#include "ops/moe_experts/cpu/tile_products_cpu.h"

#include <algorithm>

#include "core/cpu/cpu_features.h"
#include "kernels/cpu/gemm/task_cut.h"
#include "kernels/cpu/tile_products/tile_product.h"
#include "ops/moe_experts/cpu/activation_rows_cpu.h"

namespace hone::cpu {

namespace {

/// Columns of one part of <dact, act>: tasks start at multiples of them.
constexpr int64_t kDotColumns = amx::kStripsTogether * amx::kStripLanes;

/// values += bias[expert, begin ...]
void add_bias(const RowMath& math, const Tensor& bias, int64_t expert, int64_t begin, float* values, int64_t n) {
  if (!bias.defined()) return;
  float buffer[kRowBlock];
  for_row_blocks(n, [&](int64_t i, int64_t count) {
    const int64_t at = expert * bias.shape[1] + begin + i;
    math.add(values + i, load_block(math, bias, at, buffer, count), values + i, count);
  });
}

}  // namespace

bool takes_tiles(int64_t hidden, int64_t intermediate, DType activations, DType weights) {
  const bool fits = hidden % amx::kStripLanes == 0 && intermediate % amx::kStripLanes == 0;
  return active_isa() == Isa::kAmx && activations == DType::kBF16 &&
         ((weights == DType::kBF16 && fits) || weights == DType::kI8);
}

void tile_gate_up(ThreadPool& pool, const MoeGateUpArgs& args, const TileLowRank& xa) {
  const RowMath& math = row_math();
  const int64_t intermediate = args.activation.shape[1];
  const TileFactor factor{.weight = args.weight, .adapters = &args.adapters};
  TileProduct product(args.rows.offsets, {args.x, args.rows.token.as<int32_t>()}, factor, xa);
  if (args.function.gated()) product.pair_halves();
  product.run(pool, [&](const amx::FinishedRow& row) {
    add_bias(math, args.bias, row.expert, row.col, row.sums, row.count);
    if (args.function.gated()) add_bias(math, args.bias, row.expert, intermediate + row.col, row.second, row.count);
    activate_columns(math, args.function, row.sums, row.second, args.h, args.activation, row.row, row.col, row.count);
  });
}

void tile_down(ThreadPool& pool, const MoeDownArgs& args, const TileLowRank& xa, const Tensor& y) {
  const RowMath& math = row_math();
  const TileFactor factor{.weight = args.weight, .adapters = &args.adapters};
  TileProduct product(args.rows.offsets, {args.activation}, factor, xa);
  if (!args.bias.defined()) return product.store(pool, y);
  product.run(pool, [&](const amx::FinishedRow& row) {
    add_bias(math, args.bias, row.expert, row.col, row.sums, row.count);
    store_block(math, static_cast<const float*>(row.sums), y, row.row * y.shape[1] + row.col, row.count);
  });
}

int64_t dot_parts(int64_t intermediate) { return ceil_div(intermediate, kDotColumns); }

void tile_activation_grad(ThreadPool& pool, const MoeDownGradArgs& args, const ActivationGradArgs& activation,
                          const Tensor& v, const Tensor& dots) {
  const TileFactor factor{.weight = args.weight, .columns_first = false, .adapters = &args.adapters};
  const ActivationGrad grad(activation);
  TileProduct(args.rows.offsets, {args.dout, args.rows.token.as<int32_t>()}, factor, {v, false})
      .run(pool, [&](const amx::FinishedRow& row) {
        for (int64_t i = 0; i < row.count; i += kDotColumns) {
          const float dot = grad.columns(row.row, row.col + i, std::min(kDotColumns, row.count - i), row.sums + i);
          if (dots.defined()) dots.as<float>()[row.row * dots.shape[1] + (row.col + i) / kDotColumns] = dot;
        }
      });
}

void tile_input_grad(ThreadPool& pool, const MoeGateUpGradArgs& args, const Tensor& v, const Tensor& dx_rows) {
  const TileFactor factor{.weight = args.weight, .columns_first = false, .adapters = &args.adapters};
  TileProduct(args.rows.offsets, {args.dh}, factor, {v, false}).store(pool, dx_rows);
}

void tile_product(ThreadPool& pool, const ExpertRows& rows, const RowMatrix& a, const WeightView& weight,
                  const Tensor& c) {
  const std::vector<ExpertAdapterView> none;
  const TileFactor factor{.weight = weight, .columns_first = false, .adapters = &none};
  TileProduct(rows.offsets, a, factor, {}).run(pool, [&](const amx::FinishedRow& row) {
    std::copy_n(row.sums, row.count, c.as<float>() + row.row * c.shape[1] + row.col);
  });
}

}  // namespace hone::cpu
