// Products of few rows, as those of sequences that decode: B is too large for the caches and used once, so packing it
// would take as long as multiplying. Here it is multiplied where it lies: the lanes of a vector are rows of A, and an
// element of B is multiplied with all of them. An element of C is the same chain of multiply-adds as in the packed
// products, to the bit. Included only by tile_kernel_*.cpp; see tile_vector.h.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm/tile_kernel.h"
#include "kernels/cpu/gemm/tile_packing.h"
#include "kernels/cpu/gemm/tile_store.h"

namespace hone {
namespace {

template <class Vec>
class FewRows {
  using F = typename Vec::F;
  using U = typename Vec::U;
  static constexpr int kLanes = Vec::kLanes;
  /// Columns that are computed together, a chain each: a multiply-add has a latency of 4 cycles, and two start per
  /// cycle.
  static constexpr int kChains = 8;
  /// Columns that are stored together: whole vectors.
  static constexpr int kGroup = kLanes > kChains ? kLanes : kChains;
  static_assert(kGroup * kGemmDepth <= kPanelsBSize);
  /// More rows are faster packed: then packing takes less than what the lanes of a last vector leave unused.
  static constexpr int64_t kMostRows = 24;
  /// Columns whose distance is a multiple of so many elements share the lines of a cache that has as many sets in a
  /// page.
  static constexpr int64_t kPage = 4096 / sizeof(float);

 public:
  /// Columns of B that are contiguous along k, as those of a weight [out, in].
  static bool takes(const GemmArgs& g) {
    return g.m <= kMostRows && g.k > 0 && g.k * (g.m + kLanes) <= kBlockASize && g.b.row_stride == 1 &&
           !g.b.row_index && !g.b.col_index;
  }

  static void compute(const GemmArgs& g, const GemmTile& tile, const GemmWorkspace& w) {
    // Panels of A [k][kLanes], a block of kGemmDepth after the other.
    const int64_t panels = (tile.rows + kLanes - 1) / kLanes, panel_size = g.k * kLanes;
    for (int64_t i = 0; i < panels; ++i) {
      const int64_t row = i * kLanes, rows = smaller(kLanes, tile.rows - row);
      Packer<Vec, kLanes>::pack(PanelSource::of_a(g), {tile.row + row, rows, 0, g.k}, kLanes,
                                w.block_a + i * panel_size);
    }
    for (int64_t col = 0; col < tile.cols; col += kGroup) {
      const int64_t cols = smaller(kGroup, tile.cols - col);
      F sums[(kMostRows + kLanes - 1) / kLanes][kGroup];
      for (int64_t k = 0; k < g.k; k += kGemmDepth) {
        const int64_t depth = smaller(kGemmDepth, g.k - k);
        const Columns columns = columns_of(g, {tile.col + col, cols, k, depth}, w.panels_b);
        for (int64_t i = 0; i < panels; ++i) {
          const float* const panel = w.block_a + i * panel_size + k * kLanes;
          F block[kGroup];
#pragma GCC unroll 2
          for (int c = 0; c < kGroup; c += kChains) multiply(depth, panel, columns.at + c, columns.ahead, block + c);
#pragma GCC unroll 16
          for (int c = 0; c < kGroup; ++c) sums[i][c] = k == 0 ? block[c] : block[c] + sums[i][c];
        }
      }
      for (int64_t i = 0; i < panels; ++i) {
        const int64_t row = i * kLanes;
        store(g, {tile.row + row, smaller(kLanes, tile.rows - row), tile.col + col, cols, false}, sums[i]);
      }
    }
  }

 private:
  static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

  /// A group's columns of B from one k on, and how far ahead those are that a multiplication should prefetch.
  struct Columns {
    const float* at[kGroup];
    int64_t ahead;
  };

  /// Columns in place, or copied to `copy` if they are not float32 or would displace each other from L1.
  static Columns columns_of(const GemmArgs& g, const PanelRange& range, float* copy) {
    if (g.b.dtype == DType::kBF16) return copied(static_cast<const uint16_t*>(g.b.data), g.b.col_stride, range, copy);
    const auto* const data = static_cast<const float*>(g.b.data);
    if (g.b.col_stride % kPage == 0) return copied(data, g.b.col_stride, range, copy);
    Columns columns;
    for (int64_t i = 0; i < kGroup; ++i) {
      columns.at[i] = data + (range.lane + smaller(i, range.lanes - 1)) * g.b.col_stride + range.k;
    }
    columns.ahead = kGroup * g.b.col_stride;
    return columns;
  }

  /// Copies columns as float32, and prefetches the next ones.
  template <class T>
  static Columns copied(const T* data, int64_t stride, const PanelRange& range, float* copy) {
    constexpr int64_t kLine = 64 / sizeof(T);
    Columns columns;
    columns.ahead = 0;
    for (int64_t i = 0; i < kGroup; ++i) {
      float* const to = copy + smaller(i, range.lanes - 1) * kGemmDepth;
      columns.at[i] = to;
      if (i >= range.lanes) continue;
      const T* const from = data + (range.lane + i) * stride + range.k;
      int64_t k = 0;
      for (; k + kLine <= range.depth; k += kLine) {
        __builtin_prefetch(from + kGroup * stride + k, 0, 2);
#pragma GCC unroll 8
        for (int64_t j = k; j < k + kLine; j += kLanes) Vec::store(to + j, Vec::load(from + j));
      }
      for (; k < range.depth; ++k) to[k] = to_float(from[k]);
    }
    return columns;
  }

  /// sums[c] = the products of a panel of A, [depth][kLanes], with kChains columns of B. Prefetches what is `ahead` of
  /// the columns.
  static void multiply(int64_t depth, const float* panel, const float* const* columns, int64_t ahead, F* sums) {
    constexpr int64_t kLine = 64 / sizeof(float);
    const float* column[kChains];
    F sum[kChains] = {};
#pragma GCC unroll 8
    for (int c = 0; c < kChains; ++c) column[c] = columns[c];
    const auto step = [&](int64_t k) {
      const F rows = Vec::load(panel + k * kLanes);
#pragma GCC unroll 8
      for (int c = 0; c < kChains; ++c) sum[c] = Vec::multiply_add(rows, Vec::broadcast(column[c][k]), sum[c]);
    };
    int64_t k = 0;
    for (; k + kLine <= depth; k += kLine) {
      if (ahead != 0) {
#pragma GCC unroll 8
        for (int c = 0; c < kChains; ++c) __builtin_prefetch(column[c] + k + ahead, 0, 2);
      }
#pragma GCC unroll 4
      for (int64_t i = k; i < k + kLine; ++i) step(i);
    }
    for (; k < depth; ++k) step(k);
#pragma GCC unroll 8
    for (int c = 0; c < kChains; ++c) sums[c] = sum[c];
  }

  /// Stores sums whose lanes are the rows of a part of C.
  static void store(const GemmArgs& g, const GemmTile& part, const F (&sums)[kGroup]) {
    alignas(64) float rows[kLanes * kGroup];
    for (int first = 0; first < kGroup; first += kLanes) {
      U block[kLanes];
#pragma GCC unroll 16
      for (int c = 0; c < kLanes; ++c) block[c] = (U)sums[first + c];
      Vec::transpose(block);
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) Vec::store(rows + r * kGroup + first, (F)block[r]);
    }
    TileStore<Vec>::store(g, part, rows, kGroup);
  }
};

}  // namespace
}  // namespace hone
