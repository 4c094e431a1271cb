#include "kernels/cpu/tile_products/tile_product.h"

#include <algorithm>
#include <functional>

#include "core/cpu/page_memory.h"
#include "kernels/cpu/gemm/task_cut.h"

namespace hone::cpu {

using amx::TileTask;
using amx::Values;

namespace {

// Costs in cycles.
constexpr int64_t kProductCost = 16;   ///< product of two tiles
constexpr int64_t kPackingCost = 150;  ///< packing a tile of a weight from memory
constexpr int64_t kFinishCost = 100;   ///< epilogue of a tile of accumulators
constexpr int64_t kLeastTaskCost = 50000;
constexpr int64_t kTasksPerThread = 6;
/// With fewer rows, reading a weight in tiles (or transposing its tiles) costs more than packing the same rows for two
/// threads.
constexpr int64_t kLeastTaskRows = 128, kLeastTurnedRows = 256;

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

}  // namespace

amx::Operand TileFactor::operand(int64_t e) const {
  const Tensor part = weight.packed ? weight.payload : weight.payload.rows(e, 1);  // without memory if it is packed
  const int64_t stride = part.shape[2];
  return {part.data, part.dtype, columns_first ? stride : 1, columns_first ? 1 : stride, nullptr, nullptr};
}

std::vector<amx::LowRankFactor> TileFactor::low_rank(int64_t e, bool joins_columns) const {
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

TileProduct::TileProduct(const Tensor& offsets, const RowMatrix& a, const TileFactor& factor,
                         const TileLowRank& low_rank)
    : offsets_(offsets), factor_(factor), strips_(factor.columns() / amx::kStripLanes), projects_(!low_rank.formed) {
  shape_.rows = rows_of(a);
  shape_.weight = factor.operand(0);
  shape_.weight_in_tiles = factor.weight.format == &tile_format();
  if (factor.weight.packed) shape_.packed = &factor.weight.packed->layout;
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

TileProduct& TileProduct::pair_halves() {
  shape_.strip_stride = amx::kLanes;
  shape_.pair_offset = factor_.columns() / 2;
  return *this;
}

void TileProduct::store(ThreadPool& pool, const Tensor& c) {
  HONE_ASSERT(c.dtype == DType::kBF16);
  shape_.c = &c.as<BFloat16>()->bits;
  shape_.ldc = c.shape[1];
  run(pool);
}

/// A thread that starts some rows continues with them until all their columns are taken, so that it packs them once;
/// when no rows are left, it takes columns of rows that other threads have started. So it does with the groups whose
/// weights are on its own node first.
void TileProduct::run(ThreadPool& pool) {
  const std::vector<Rows> rows = cut(pool.size());
  std::vector<std::atomic<int64_t>> begun(rows.size());  // strips taken, per rows
  struct alignas(64) OfNode {
    std::vector<size_t> rows;
    std::atomic<size_t> next{0};
  };
  const int nodes = pool.nodes();
  std::vector<OfNode> parts(static_cast<size_t>(nodes));
  for (size_t i = 0; i < rows.size(); ++i) {
    parts[static_cast<size_t>(node_of_item(rows[i].expert, offsets_.numel() - 1, nodes))].rows.push_back(i);
  }
  pool.parallel_for(pool.size(), [&](int64_t, int thread) {
    for (int step = 0; step < nodes; ++step) {
      OfNode& part = parts[static_cast<size_t>((pool.node_of(thread) + step) % nodes)];
      for (size_t i; (i = part.next.fetch_add(1)) < part.rows.size();)
        multiply(rows[part.rows[i]], begun[part.rows[i]]);
      for (const size_t i : part.rows) multiply(rows[i], begun[i]);
    }
  });
}

/// Multiplies parts of the columns until all are taken.
void TileProduct::multiply(const Rows& rows, std::atomic<int64_t>& begun) const {
  int64_t strip = begun.fetch_add(rows.strips);
  if (strip >= strips_) return;
  const std::vector<amx::LowRankFactor> factors = factor_.low_rank(rows.expert, true);
  std::vector<amx::LowRankFactor> projections;
  if (projects_) projections = factor_.low_rank(rows.expert, false);
  TileTask task = shape_;
  task.expert = rows.expert;
  task.weight = factor_.operand(rows.expert);
  if (const auto& packed = factor_.weight.packed) {
    const Tensor& chunks = packed->chunks;
    const int64_t matrices = chunks.shape[0] / factor_.weight.payload.shape[0];  // how many an expert has
    task.chunks = chunks.data + rows.expert * matrices * packed->layout.bytes;
  }
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
    // Tasks of other columns would store the same values.
    task.low_rank.stored = strip == 0 ? shape_.low_rank.stored : nullptr;
    amx::run_tiles(task, workspace);
    task.rows_packed = stay_packed;
  }
}

int64_t TileProduct::strip_cost(int64_t rows) const {
  const int64_t steps = amx::steps_of(shape_.depth) + amx::steps_of(shape_.low_rank.depth);
  return 2 * (steps * (amx::panels_of(rows) * kProductCost + kPackingCost) + amx::panels_of(rows) * kFinishCost);
}

/// The rows of all experts that have any, those with the most work first.
std::vector<TileProduct::Rows> TileProduct::cut(int threads) const {
  std::vector<Rows> all;
  const int64_t* offsets = offsets_.as<int64_t>();
  const int64_t experts = offsets_.numel() - 1;
  int64_t total = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t count = offsets[e + 1] - offsets[e];
    if (count > 0) total += strips_ * strip_cost(count);
  }
  const int64_t most_cost = std::max(kLeastTaskCost, total / (threads * kTasksPerThread));
  // Each thread should have its own rows, which it packs, unless they become few compared to the weight that it reads.
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

}  // namespace hone::cpu
