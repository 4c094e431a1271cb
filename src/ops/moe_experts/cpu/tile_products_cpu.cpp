#include "ops/moe_experts/cpu/tile_products_cpu.h"

#include <algorithm>
#include <atomic>
#include <functional>

#include "core/cpu_features.h"
#include "core/page_memory.h"
#include "kernels/cpu/gemm/task_cut.h"
#include "kernels/cpu/tile_products/expert_tiles.h"
#include "ops/moe_experts/cpu/activation_rows_cpu.h"

namespace hone::cpu {

using amx::TileTask;
using amx::Values;

namespace {

// In cycles.
constexpr int64_t kProductCost = 16;   ///< of two tiles
constexpr int64_t kPackingCost = 150;  ///< of a tile of a weight, which is read from memory
constexpr int64_t kFinishCost = 100;   ///< of a tile of sums
constexpr int64_t kLeastTaskCost = 50000;
constexpr int64_t kTasksPerThread = 6;
/// With fewer rows reading a weight in tiles costs more than packing the same rows for two threads, and turning its
/// tiles.
constexpr int64_t kLeastTaskRows = 128, kLeastTurnedRows = 256;

/// Columns of one part of <dact, act>: tasks begin at multiples of them.
constexpr int64_t kDotColumns = amx::kStripsTogether * amx::kStripLanes;

std::byte* thread_workspace(int64_t bytes) {
  thread_local PageMemory memory;
  thread_local int64_t size = 0;
  if (bytes > size) {
    memory = allocate_pages(static_cast<size_t>(bytes));
    size = bytes;
  }
  return memory.get();
}

/// Element [0, 0] of matrix e of a stack [E, rows, cols].
Values values_of(const Tensor& stack, int64_t e) {
  const Tensor part = stack.rows(e, 1);
  return {part.data, part.dtype == DType::kBF16, part.shape[-1]};
}

amx::Operand rows_of(const RowMatrix& rows) {
  const MatrixView view = rows.from(0);
  return {view.data, view.dtype, view.row_stride, 1, rows.index, nullptr};
}

/// The weight's side of a product.
struct Factor {
  WeightView weight;          // [E, columns, k], or [E, k, columns]
  bool columns_first = true;  // the former
  const std::vector<ExpertAdapterView>* adapters = nullptr;

  int64_t columns() const { return weight.payload.shape[columns_first ? 1 : 2]; }
  int64_t depth() const { return weight.payload.shape[columns_first ? 2 : 1]; }

  amx::Operand operand(int64_t e) const {
    const Tensor part = weight.payload.rows(e, 1);
    const int64_t stride = part.shape[2];
    return {part.data, part.dtype, columns_first ? stride : 1, columns_first ? 1 : stride, nullptr, nullptr};
  }

  /// Of each adapter what joins the columns of C with its ranks, or k with
  /// them.
  std::vector<amx::LowRankFactor> low_rank(int64_t e, bool joins_columns) const {
    const bool of_b = joins_columns == columns_first;
    std::vector<amx::LowRankFactor> factors;
    int64_t rank_begin = 0;
    for (const ExpertAdapterView& a : *adapters) {
      factors.push_back({.values = values_of(of_b ? a.lora_b : a.lora_a, e),
                         .features_first = of_b,
                         .begin = of_b ? a.out_begin : 0,
                         .count = of_b ? a.out_count : a.lora_a.shape[2],
                         .rank_begin = rank_begin,
                         .rank = a.rank(),
                         .scale = joins_columns ? a.input_scaling() : 1.0f});
      rank_begin += expert_rank_columns(a.rank());
    }
    return factors;
  }
};

/// Runs all tasks of a product.
class TileProduct {
 public:
  /// `low_rank` [R, J] is undefined without adapters. Rows and factor must outlive this.
  TileProduct(const ExpertRows& rows, const RowMatrix& a, const Factor& factor, const TileLowRank& low_rank)
      : rows_(rows), factor_(factor), strips_(factor.columns() / amx::kStripLanes), projects_(!low_rank.formed) {
    shape_.rows = rows_of(a);
    shape_.weight = factor.operand(0);
    shape_.weight_in_tiles = factor.weight.format == WeightFormat::kTiles;
    shape_.depth = factor.depth();
    const Tensor& l = low_rank.rows;
    for (const ExpertAdapterView& adapter : *factor.adapters) {
      shape_.low_rank.depth += expert_rank_columns(adapter.rank());
    }
    if (!l.defined()) return;
    if (low_rank.formed) {
      shape_.low_rank.rows = rows_of({l});
    } else {
      shape_.low_rank.stored = l.data;
      shape_.low_rank.stored_as_bf16 = l.dtype == DType::kBF16;
    }
  }

  /// A strip holds 16 columns of the first half and 16 of the second.
  TileProduct& pair_halves() {
    shape_.strip_stride = amx::kLanes;
    shape_.pair_offset = factor_.columns() / 2;
    return *this;
  }

  /// finish(row) for every row of every part.
  template <class Finish>
  void run(ThreadPool& pool, const Finish& finish) {
    shape_.finish = [](const void* context, const amx::FinishedRow& row) {
      (*static_cast<const Finish*>(context))(row);
    };
    shape_.context = &finish;
    run(pool);
  }

  /// c bf16 [R, columns] = the product.
  void store(ThreadPool& pool, const Tensor& c) {
    HONE_ASSERT(c.dtype == DType::kBF16);
    shape_.c = &c.as<BFloat16>()->bits;
    shape_.ldc = c.shape[1];
    run(pool);
  }

 private:
  /// Rows of an expert, whose columns are cut in parts of `strips`.
  struct Rows {
    int64_t expert, row, count, strips;
  };

  /// A thread that begins with some rows stays with them until all their columns are begun, so that it packs them once;
  /// when no rows are left it takes columns of rows that others have begun with.
  void run(ThreadPool& pool) {
    const std::vector<Rows> rows = cut(pool.size());
    std::vector<std::atomic<int64_t>> begun(rows.size());  // strips
    std::atomic<size_t> next{0};
    pool.parallel_for(pool.size(), [&](int64_t, int) {
      for (size_t i; (i = next.fetch_add(1)) < rows.size();) multiply(rows[i], begun[i]);
      for (size_t i = 0; i < rows.size(); ++i) multiply(rows[i], begun[i]);
    });
  }

  /// Multiplies parts of the columns until none is left that nobody has begun.
  void multiply(const Rows& rows, std::atomic<int64_t>& begun) const {
    int64_t strip = begun.fetch_add(rows.strips);
    if (strip >= strips_) return;
    const std::vector<amx::LowRankFactor> factors = factor_.low_rank(rows.expert, true);
    std::vector<amx::LowRankFactor> projections;
    if (projects_) projections = factor_.low_rank(rows.expert, false);
    TileTask task = shape_;
    task.expert = rows.expert;
    task.weight = factor_.operand(rows.expert);
    if (const Tensor& scales = factor_.weight.scales; scales.defined()) {
      (factor_.columns_first ? task.column_scales : task.depth_scales) = scales.rows(rows.expert, 1).as<float>();
    }
    task.row = rows.row;
    task.count = rows.count;
    task.low_rank.factors = factors.data();
    task.low_rank.factor_count = static_cast<int64_t>(factors.size());
    task.low_rank.projections = projections.data();
    task.low_rank.projection_count = static_cast<int64_t>(projections.size());
    std::byte* const workspace = thread_workspace(amx::workspace_bytes(task));
    const bool stay_packed = amx::chunk_depth(task, task.count) == task.depth;
    for (; strip < strips_; strip = begun.fetch_add(rows.strips)) {
      task.strips = std::min(rows.strips, strips_ - strip);
      task.col = strip * shape_.strip_stride;
      // Tasks of the other columns form the same.
      task.low_rank.stored = strip == 0 ? shape_.low_rank.stored : nullptr;
      amx::run_tiles(task, workspace);
      task.rows_packed = stay_packed;
    }
  }

  int64_t strip_cost(int64_t rows) const {
    const int64_t steps = amx::steps_of(shape_.depth) + amx::steps_of(shape_.low_rank.depth);
    return 2 * (steps * (amx::panels_of(rows) * kProductCost + kPackingCost) + amx::panels_of(rows) * kFinishCost);
  }

  /// The rows of all experts that have some, those with most work first.
  std::vector<Rows> cut(int threads) const {
    std::vector<Rows> all;
    const int64_t* offsets = rows_.offsets.template as<int64_t>();
    const int64_t experts = rows_.offsets.numel() - 1;
    int64_t total = 0;
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t count = offsets[e + 1] - offsets[e];
      if (count > 0) total += strips_ * strip_cost(count);
    }
    const int64_t most_cost = std::max(kLeastTaskCost, total / (threads * kTasksPerThread));
    // Threads should have rows of their own, which they pack, unless those become few for the weight that they read.
    const int64_t even =
        std::max(factor_.columns_first ? kLeastTaskRows : kLeastTurnedRows, ceil_div(offsets[experts], threads));
    const int64_t most_rows = std::min(amx::most_rows(shape_), even);
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t count = offsets[e + 1] - offsets[e];
      if (count == 0) continue;
      const int64_t rows = even_part(count, most_rows, 2 * amx::kLanes);
      int64_t strips = std::max(most_cost / strip_cost(std::min(rows, count)), amx::kStripsTogether);
      if (amx::chunk_depth(shape_, rows) < shape_.depth) {
        strips = std::min(strips, amx::kMaxTaskSums / (rows * amx::kStripLanes));
      }
      strips = even_part(strips_, strips / amx::kStripsTogether * amx::kStripsTogether, amx::kStripsTogether);
      for (int64_t row = 0; row < count; row += rows) {
        all.push_back({e, offsets[e] + row, std::min(rows, count - row), strips});
      }
    }
    std::ranges::stable_sort(all, std::ranges::greater(), &Rows::count);
    return all;
  }

  const ExpertRows& rows_;
  const Factor& factor_;
  const int64_t strips_;
  const bool projects_;
  TileTask shape_;
};

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
  const Factor factor{.weight = args.weight, .adapters = &args.adapters};
  TileProduct(args.rows, {args.x, args.rows.token.as<int32_t>()}, factor, xa)
      .pair_halves()
      .run(pool, [&](const amx::FinishedRow& row) {
        add_bias(math, args.bias, row.expert, row.col, row.sums, row.count);
        add_bias(math, args.bias, row.expert, intermediate + row.col, row.second, row.count);
        activate_columns(math, args.function, row.sums, row.second, args.h, args.activation, row.row, row.col,
                         row.count);
      });
}

void tile_down(ThreadPool& pool, const MoeDownArgs& args, const TileLowRank& xa, const Tensor& y) {
  const RowMath& math = row_math();
  const Factor factor{.weight = args.weight, .adapters = &args.adapters};
  TileProduct product(args.rows, {args.activation}, factor, xa);
  if (!args.bias.defined()) return product.store(pool, y);
  product.run(pool, [&](const amx::FinishedRow& row) {
    add_bias(math, args.bias, row.expert, row.col, row.sums, row.count);
    store_block(math, static_cast<const float*>(row.sums), y, row.row * y.shape[1] + row.col, row.count);
  });
}

int64_t dot_parts(int64_t intermediate) { return ceil_div(intermediate, kDotColumns); }

void tile_activation_grad(ThreadPool& pool, const MoeDownGradArgs& args, const ActivationGradArgs& activation,
                          const Tensor& v, const Tensor& dots) {
  const Factor factor{.weight = args.weight, .columns_first = false, .adapters = &args.adapters};
  const ActivationGrad grad(activation);
  TileProduct(args.rows, {args.dout, args.rows.token.as<int32_t>()}, factor, {v, false})
      .run(pool, [&](const amx::FinishedRow& row) {
        for (int64_t i = 0; i < row.count; i += kDotColumns) {
          const float dot = grad.columns(row.row, row.col + i, std::min(kDotColumns, row.count - i), row.sums + i);
          if (dots.defined()) dots.as<float>()[row.row * dots.shape[1] + (row.col + i) / kDotColumns] = dot;
        }
      });
}

void tile_input_grad(ThreadPool& pool, const MoeGateUpGradArgs& args, const Tensor& v, const Tensor& dx_rows) {
  const Factor factor{.weight = args.weight, .columns_first = false, .adapters = &args.adapters};
  TileProduct(args.rows, {args.dh}, factor, {v, false}).store(pool, dx_rows);
}

void tile_linear(ThreadPool& pool, const Tensor& a, const Tensor& weight, bool columns_first, const GradDest& c) {
  int64_t offsets[] = {0, a.shape[0]};
  ExpertRows rows;
  rows.offsets = {reinterpret_cast<std::byte*>(offsets), DType::kI64, {2}, a.device};
  const std::vector<ExpertAdapterView> none;
  const WeightView stack{weight.reshaped({1, weight.shape[0], weight.shape[1]}), WeightFormat::kTiles};
  const Factor factor{.weight = stack, .columns_first = columns_first, .adapters = &none};
  TileProduct product(rows, {a}, factor, {});
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

void tile_product(ThreadPool& pool, const ExpertRows& rows, const RowMatrix& a, const WeightView& weight,
                  const Tensor& c) {
  const std::vector<ExpertAdapterView> none;
  const Factor factor{.weight = weight, .columns_first = false, .adapters = &none};
  TileProduct(rows, a, factor, {}).run(pool, [&](const amx::FinishedRow& row) {
    std::copy_n(row.sums, row.count, c.as<float>() + row.row * c.shape[1] + row.col);
  });
}

}  // namespace hone::cpu
