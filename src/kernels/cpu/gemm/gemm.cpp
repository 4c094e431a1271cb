#include "kernels/cpu/gemm/gemm.h"

#include <algorithm>
#include <vector>

#include "core/base/error.h"
#include "core/cpu/cpu_features.h"
#include "core/cpu/node_loop.h"
#include "core/cpu/page_memory.h"
#include "core/cpu/thread_pool.h"
#include "kernels/cpu/gemm/amx_products.h"
#include "kernels/cpu/gemm/task_cut.h"
#include "kernels/cpu/gemm/tile_kernel.h"

namespace hone {

namespace {

/// Costs in multiply-adds. Packing an element takes as long as this many multiply-adds (measured: 4 to 8 elements per
/// cycle versus 32 to 64 multiply-adds), so a tile of few rows costs more than its multiply-adds.
constexpr int64_t kPackingCost = 8;
/// Below this, waking the other threads costs more than they save.
constexpr int64_t kSerialCost = 1 << 17;
/// A task of this cost takes some 20 microseconds: long compared to a task's overhead, short compared to an imbalance.
constexpr int64_t kLeastTaskCost = 1 << 20;
constexpr int64_t kTasksPerThread = 3;
/// From this many elements of C in all products of a call on, C is written with non-temporal stores: it would not stay
/// in L2 until it is read, and this avoids fetching lines that are overwritten (measured: half the time of weight
/// gradients of 64 rows, 4 % of deep products).
constexpr int64_t kStreamedSize = int64_t{1} << 19;

const TileKernel& active_kernel() {
  switch (active_isa()) {
#if defined(__x86_64__)
    case Isa::kAmx:
    case Isa::kAvx512:
      return kTileKernelAvx512;
    case Isa::kAvx2:
      return kTileKernelAvx2;
#endif
    default:
      return kTileKernelBaseline;
  }
}

const GemmWorkspace& thread_workspace() {
  constexpr size_t kBytes = (kBlockASize + kPanelsBSize + kTileCSize) * sizeof(float);
  constexpr size_t kHugePage = size_t{1} << 21;  // slightly more than needed, in one page
  thread_local const PageMemory memory = allocate_pages(std::max(kBytes, kHugePage));
  float* const begin = reinterpret_cast<float*>(memory.get());
  thread_local const GemmWorkspace workspace{begin, begin + kBlockASize, begin + kBlockASize + kPanelsBSize};
  return workspace;
}

/// Division of C into tiles of tile_rows x tile_cols, smaller at the edges.
struct Tiling {
  int64_t tile_rows = 0, tile_cols = 0;
  int64_t across = 0, tiles = 0;
  bool streams = false;

  GemmTile tile(const GemmArgs& g, int64_t i) const {
    const int64_t row = i / across * tile_rows, col = i % across * tile_cols;
    return {row, std::min(tile_rows, g.m - row), col, std::min(tile_cols, g.n - col), streams};
  }
};

int64_t cost(int64_t rows, int64_t cols, int64_t k) {
  return rows * cols * (k + kPackingCost) + kPackingCost * (rows + cols) * k;
}

Tiling tiling_of(const GemmArgs& g, const TileKernel& kernel, int64_t task_cost) {
  if (g.m == 0 || g.n == 0) return {};
  int64_t most_rows = kMaxTileRows / kernel.panel_rows * kernel.panel_rows, most_cols = kMaxTileCols;
  Tiling t;
  while (true) {
    t.tile_rows = even_part(g.m, most_rows, kernel.panel_rows);
    t.tile_cols = even_part(g.n, most_cols, kernel.panel_cols);
    const int64_t rows = std::min(t.tile_rows, g.m), cols = std::min(t.tile_cols, g.n);
    if (cost(rows, cols, g.k) <= task_cost) break;
    if (rows >= cols && rows > kernel.panel_rows) {
      most_rows = std::max(t.tile_rows / 2 / kernel.panel_rows, int64_t{1}) * kernel.panel_rows;
    } else if (cols > kernel.panel_cols) {
      most_cols = std::max(t.tile_cols / 2 / kernel.panel_cols, int64_t{1}) * kernel.panel_cols;
    } else {
      break;
    }
  }
  t.across = ceil_div(g.n, t.tile_cols);
  t.tiles = t.across * ceil_div(g.m, t.tile_rows);
  return t;
}

void check(const MatrixView& v) { HONE_ASSERT(v.dtype == DType::kF32 || v.dtype == DType::kBF16); }

void check(const GemmArgs& g) {
  HONE_ASSERT(g.m >= 0 && g.n >= 0 && g.k >= 0 && (g.m <= 1 || g.ldc >= g.n));
  HONE_ASSERT(g.c_dtype == DType::kF32 || g.c_dtype == DType::kBF16);
  check(g.a);
  check(g.b);
}

void run_serially(const GemmArgs& g, const TileKernel& kernel, bool streams) {
  Tiling tiling = tiling_of(g, kernel, INT64_MAX);
  tiling.streams = streams;
  for (int64_t i = 0; i < tiling.tiles; ++i) kernel.compute(g, tiling.tile(g, i), thread_workspace());
}

void tiled_products(ThreadPool& pool, std::span<const GemmArgs> groups) {
  int64_t total = 0, size = 0;
  for (const GemmArgs& g : groups) {
    check(g);
    total += cost(g.m, g.n, g.k);
    size += g.m * g.n;
  }
  const bool streams = size >= kStreamedSize;
  const TileKernel& kernel = active_kernel();
  if (pool.size() == 1 || total <= kSerialCost) {
    for (const GemmArgs& g : groups) run_serially(g, kernel, streams);
    return;
  }
  const int64_t task_cost = std::max(kLeastTaskCost, total / (pool.size() * kTasksPerThread));
  std::vector<Tiling> tilings;
  std::vector<int64_t> first_task;
  tilings.reserve(groups.size());
  first_task.reserve(groups.size());
  int64_t tasks = 0;
  for (const GemmArgs& g : groups) {
    first_task.push_back(tasks);
    tilings.push_back(tiling_of(g, kernel, task_cost));
    tilings.back().streams = streams;
    tasks += tilings.back().tiles;
  }
  // The last group that starts at or before the task: empty groups share a start with their successor.
  const auto group_of = [&](int64_t task) {
    const auto after = std::upper_bound(first_task.begin(), first_task.end(), task);
    return static_cast<size_t>(after - first_task.begin()) - 1;
  };
  parallel_for_on_nodes(
      pool, tasks, [&](int64_t task) { return groups[group_of(task)].node; },
      [&](int64_t task, int) {
        const size_t group = group_of(task);
        const GemmArgs& g = groups[group];
        kernel.compute(g, tilings[group].tile(g, task - first_task[group]), thread_workspace());
      });
}

bool runs_on_amx(const GemmArgs& g) { return gemm_rounds() && amx::takes(g); }

}  // namespace

bool gemm_rounds() { return active_isa() == Isa::kAmx; }

void gemm_serial(const GemmArgs& args) {
  check(args);
  if (runs_on_amx(args)) return amx::product(args);
  run_serially(args, active_kernel(), false);
}

void gemm(ThreadPool& pool, const GemmArgs& args) { grouped_gemm(pool, {&args, 1}); }

void grouped_gemm(ThreadPool& pool, std::span<const GemmArgs> groups) {
  if (std::ranges::none_of(groups, runs_on_amx)) return tiled_products(pool, groups);
  for (const GemmArgs& g : groups) check(g);
  if (std::ranges::all_of(groups, runs_on_amx)) return amx::products(pool, groups);
  // Each product chooses its own kernel.
  std::vector<GemmArgs> sorted(groups.begin(), groups.end());
  const auto others = std::stable_partition(sorted.begin(), sorted.end(), runs_on_amx);
  amx::products(pool, {sorted.begin(), others});
  tiled_products(pool, {others, sorted.end()});
}

}  // namespace hone
