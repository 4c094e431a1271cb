// The tile kernel: packs, multiplies and stores one tile of C. Included only by tile_kernel_*.cpp, each with the
// vectors of its instruction set; see tile_vector.h.
#pragma once

#include <cstdint>
#include <utility>

#include "ops/gemm/tile_kernel.h"
#include "ops/gemm/tile_packing.h"

namespace hone {
namespace {

/// A micro-kernel keeps up to PanelRows x (PanelVectors * kLanes) sums in registers.
template <class Vec, int PanelRows, int PanelVectors>
class TileComputer {
  using F = typename Vec::F;
  static constexpr int kLanes = Vec::kLanes;
  static constexpr int kPanelCols = PanelVectors * kLanes;
  /// Elements between two k of an A panel: whole vectors, so that packing stores them aligned.
  static constexpr int kPanelStride = (PanelRows + kLanes - 1) / kLanes * kLanes;
  static_assert(kPanelCols <= kMaxPanelCols);
  static_assert(kMaxTileRows / PanelRows * kPanelStride * kGemmDepth <= kBlockASize);

  /// With few rows, two panels of B at a time: a multiply-add takes 4 cycles and two start each cycle, so a row or two
  /// of one panel would leave most of them idle.
  static constexpr int kFewRows = PanelRows / 2 < 4 ? PanelRows / 2 : 4;

  /// B panels that are packed together when the columns of B are neighbours in memory: reading 2 KiB of a row at a time
  /// rather than one panel's cache line is worth the trip of the panels through the level-2 cache.
  static constexpr int64_t kPanelsTogether = kPanelsBSize / kGemmDepth / kPanelCols;

  /// A block of k, within a tile.
  struct Block {
    int64_t height;  ///< rows of an A panel: the tile's rows evenly over the panels, at most PanelRows
    int64_t k, depth;
    bool first, last;
  };

  /// A run of columns that one pass over the A panels computes: one or two panels of B.
  struct Strip {
    int64_t col, cols;  ///< within the tile
    const float* panels;
  };

 public:
  static void compute(const GemmArgs& g, const GemmTile& tile, const GemmWorkspace& w) {
    const int64_t panels = (tile.rows + PanelRows - 1) / PanelRows;
    const int64_t height = (tile.rows + panels - 1) / panels;
    const PanelSource a = PanelSource::of_a(g), b = PanelSource::of_b(g);
    const int64_t strip_cols = height <= kFewRows ? 2 * kPanelCols : kPanelCols;
    const int64_t packed_cols = b.lanes_are_neighbours() ? kPanelsTogether * kPanelCols : strip_cols;
    for (int64_t k = 0; k == 0 || k < g.k; k += kGemmDepth) {
      const int64_t depth = smaller(kGemmDepth, g.k - k);
      const Block block{height, k, depth, k == 0, k + depth >= g.k};
      Packer<Vec, kPanelStride>::pack(a, {tile.row, tile.rows, k, depth}, height, w.block_a);
      for (int64_t col = 0; col < tile.cols; col += packed_cols) {
        const int64_t end = smaller(col + packed_cols, tile.cols);
        Packer<Vec, kPanelCols>::pack(b, {tile.col + col, end - col, k, depth}, kPanelCols, w.panels_b);
        const float* packed = w.panels_b;
        for (int64_t c = col; c < end; c += strip_cols, packed += strip_cols * depth) {
          multiply(g, tile, block, {c, smaller(strip_cols, end - c), packed}, w);
        }
      }
    }
  }

 private:
  static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

  /// All A panels over one strip. Sums between blocks of k live in the C tile; a product of one block needs none.
  static void multiply(const GemmArgs& g, const GemmTile& tile, const Block& block, const Strip& strip,
                       const GemmWorkspace& w) {
    alignas(64) float single[PanelRows * kPanelCols];
    const int64_t vectors = (strip.cols + kLanes - 1) / kLanes;
    const float* a = w.block_a;
    for (int64_t row = 0; row < tile.rows; row += block.height, a += kPanelStride * block.depth) {
      const int64_t rows = smaller(block.height, tile.rows - row);
      float* sums = w.tile_c + row * kMaxTileCols + strip.col;
      int64_t sums_stride = kMaxTileCols;
      if (block.first && block.last) {
        sums = single;
        sums_stride = vectors * kLanes;
      }
      const MicroKernel kernel = vectors <= PanelVectors ? kKernels[rows - 1][vectors - 1]
                                                         : kWideKernels[rows - 1][vectors - PanelVectors - 1];
      kernel(block.depth, a, strip.panels, sums, sums_stride, block.first);
      if (block.last) {
        store(g, {tile.row + row, rows, tile.col + strip.col, strip.cols}, sums, sums_stride);
      }
    }
  }

  using MicroKernel = void (*)(int64_t depth, const float* a, const float* b, float* sums, int64_t stride, bool first);

  /// sums[Rows][Vectors * kLanes] (= or +=) a[depth][kPanelStride] x b: panels [depth][kPanelCols], one after another.
  template <int Rows, int Vectors>
  static void micro_kernel(int64_t depth, const float* a, const float* b, float* sums, int64_t stride, bool first) {
    F sum[Rows][Vectors] = {};
    const int64_t panel_size = kPanelCols * depth;
    for (int64_t i = 0; i < depth; ++i) {
      F row_b[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        row_b[v] = Vec::load(b + (v / PanelVectors) * panel_size + (v % PanelVectors) * kLanes);
      }
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const F element_a = Vec::broadcast(a[r]);
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) sum[r][v] = Vec::multiply_add(element_a, row_b[v], sum[r][v]);
      }
      a += kPanelStride;
      b += kPanelCols;
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        float* to = sums + r * stride + v * kLanes;
        Vec::store(to, first ? sum[r][v] : Vec::load(to) + sum[r][v]);
      }
    }
  }

  struct Row {
    MicroKernel of[PanelVectors];
    constexpr MicroKernel operator[](int64_t i) const { return of[i]; }
  };
  template <int Count>
  struct Table {
    Row rows[Count];
    constexpr const Row& operator[](int64_t i) const { return rows[i]; }
  };

  template <int Rows, int Offset, int... V>
  static constexpr Row table_row(std::integer_sequence<int, V...>) {
    return {{&micro_kernel<Rows, Offset + V + 1>...}};
  }
  template <int Offset, int... R>
  static constexpr Table<sizeof...(R)> table(std::integer_sequence<int, R...>) {
    return {{table_row<R + 1, Offset>(std::make_integer_sequence<int, PanelVectors>{})...}};
  }

  /// [rows - 1][vectors - 1], and the same for strips of two panels.
  static constexpr auto kKernels = table<0>(std::make_integer_sequence<int, PanelRows>{});
  static constexpr auto kWideKernels = table<PanelVectors>(std::make_integer_sequence<int, kFewRows>{});

  static void store(const GemmArgs& g, const GemmTile& part, const float* sums, int64_t stride) {
    if (g.c_dtype == DType::kBF16) {
      store_as(static_cast<uint16_t*>(g.c), g, part, sums, stride);
    } else {
      store_as(static_cast<float*>(g.c), g, part, sums, stride);
    }
  }

  template <class T>
  static void store_as(T* c, const GemmArgs& g, const GemmTile& part, const float* sums, int64_t stride) {
    for (int64_t r = 0; r < part.rows; ++r) {
      const F scale = Vec::broadcast(g.row_scale ? g.alpha * g.row_scale[part.row + r] : g.alpha);
      T* to = c + (part.row + r) * g.ldc + part.col;
      const float* from = sums + r * stride;
      int64_t col = 0;
      for (; col + kLanes <= part.cols; col += kLanes) {
        Vec::store(to + col, finish(scale, Vec::load(from + col), g.beta, to + col));
      }
      if (col == part.cols) continue;
      // The rest goes through a whole vector, so that every element is computed by the same instructions.
      T rest[kLanes] = {};
      if (g.beta != 0.0f) copy(rest, to + col, part.cols - col);
      Vec::store(rest, finish(scale, Vec::load(from + col), g.beta, rest));
      copy(to + col, rest, part.cols - col);
    }
  }

  template <class T>
  static F finish(F scale, F sum, float beta, const T* c) {
    const F product = scale * sum;
    return beta == 0.0f ? product : Vec::multiply_add(Vec::broadcast(beta), Vec::load(c), product);
  }

  template <class T>
  static void copy(T* to, const T* from, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  }
};

}  // namespace
}  // namespace hone
