// The tile kernel: packs what it cannot read in place, multiplies and stores one tile of C. Included only by
// tile_kernel_*.cpp, each with vectors of its instruction set; see tile_vector.h.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/cpu/gemm/tile_fetch.h"
#include "kernels/cpu/gemm/tile_few_rows.h"
#include "kernels/cpu/gemm/tile_kernel.h"
#include "kernels/cpu/gemm/tile_packing.h"
#include "kernels/cpu/gemm/tile_store.h"

namespace hone {
namespace {

/// A micro-kernel keeps up to PanelRows x (PanelVectors * kLanes) sums in registers.
template <class Vec, int PanelRows, int PanelVectors>
class TileComputer {
  using F = typename Vec::F;
  static constexpr int kLanes = Vec::kLanes;
  static constexpr int kPanelCols = PanelVectors * kLanes;
  /// Elements between two k of an A panel: whole vectors, so that packing stores are aligned.
  static constexpr int kPanelStride = (PanelRows + kLanes - 1) / kLanes * kLanes;
  static_assert(kPanelCols <= kMaxPanelCols);
  static_assert(kMaxTileRows / PanelRows * kPanelStride * kGemmDepth <= kBlockASize);

  /// With few rows, uses two panels of B at a time: a multiply-add has a latency of 4 cycles and two start per cycle,
  /// so one or two rows of a single panel would leave most slots idle.
  static constexpr int kFewRows = PanelRows / 2 < 4 ? PanelRows / 2 : 4;

  /// B panels that are packed together if the columns of B are contiguous: reading 2 KiB of a row at a time instead of
  /// one panel's cache line outweighs the panels' trip through L2.
  static constexpr int64_t kPanelsTogether = kPanelsBSize / kGemmDepth / kPanelCols;

  /// Whether micro-kernels prefetch the memory that is packed next. With narrower vectors the hardware prefetchers
  /// suffice: there the gain was measured to equal the cost.
  static constexpr bool kFetches = kLanes >= 16;

  /// An operand is read in place if two of its k are no further apart than hardware prefetches by stride, B if at most
  /// so many panels of A are multiplied with it. Measured: weight gradients of 128 x 128 over 3,072 rows take 0.79 of
  /// the time, those of 64 x 128 0.7. Rows of A that are contiguous lost 5 % in place.
  static constexpr int64_t kMostStrideInPlace = 512, kMostPanelsInPlace = 4;

  /// A block of k within a tile.
  struct Block {
    int64_t height;  ///< rows of an A panel: the tile's rows divided evenly, at most PanelRows
    int64_t k, depth;
    bool first, last;
  };

  /// Panels of an operand, packed or in place: lane l of panel p at k is at[p * panel_stride + k * k_stride + l].
  struct Panels {
    const float* at;
    int64_t k_stride, panel_stride;
  };

  /// Columns computed in one pass over the A panels: one or two panels of B.
  struct Strip {
    int64_t col, cols;  ///< within the tile
    Panels b;
  };

 public:
  static void compute(const GemmArgs& g, const GemmTile& tile, const GemmWorkspace& w) {
    if (FewRows<Vec>::takes(g)) return FewRows<Vec>::compute(g, tile, w);
    const PanelSource a = PanelSource::of_a(g), b = PanelSource::of_b(g);
    const int64_t panels = (tile.rows + PanelRows - 1) / PanelRows;
    const int64_t height = (tile.rows + panels - 1) / panels;
    const bool a_in_place = can_be_read_in_place(a);
    const bool b_in_place = can_be_read_in_place(b) && panels <= kMostPanelsInPlace && tile.cols % kLanes == 0;
    const int64_t strip_cols = height <= kFewRows ? 2 * kPanelCols : kPanelCols;
    const int64_t packed_cols = b.lanes_are_neighbours() ? kPanelsTogether * kPanelCols : strip_cols;
    const int64_t steps = (tile.cols + packed_cols - 1) / packed_cols;
    FetchList fetch(w.panels_b);
    for (int64_t k = 0; k == 0 || k < g.k; k += kGemmDepth) {
      const int64_t depth = smaller(kGemmDepth, g.k - k);
      const Block block{height, k, depth, k == 0, k + depth >= g.k};
      if (!a_in_place) Packer<Vec, kPanelStride>::pack(a, {tile.row, tile.rows, k, depth}, height, w.block_a);
      const Panels rows =
          a_in_place ? in_place(a, tile.row, k, height) : Panels{w.block_a, kPanelStride, kPanelStride * depth};
      const int64_t next_k = k + depth, next_depth = smaller(kGemmDepth, g.k - next_k);
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t col = step * packed_cols, end = smaller(col + packed_cols, tile.cols);
        const PanelRange columns{tile.col + col, end - col, k, depth};
        if (!b_in_place) Packer<Vec, kPanelCols>::pack(b, columns, kPanelCols, w.panels_b);
        fetch.clear();
        if (kFetches && panels > 1) {
          if (end < tile.cols) {
            fetch.add(b, {tile.col + end, smaller(packed_cols, tile.cols - end), k, depth});
          } else if (!block.last) {
            fetch.add(b, {tile.col, smaller(packed_cols, tile.cols), next_k, next_depth});
          }
          if (!block.last) fetch.add(a, part_of(a, {tile.row, tile.rows, next_k, next_depth}, step, steps));
        }
        const float* packed = w.panels_b;
        for (int64_t c = col; c < end; c += strip_cols, packed += strip_cols * depth) {
          const int64_t cols = smaller(strip_cols, end - c);
          const Panels strip =
              b_in_place ? in_place(b, tile.col + c, k, kPanelCols) : Panels{packed, kPanelCols, kPanelCols * depth};
          multiply(g, tile, block, rows, {c, cols, strip}, w, fetch);
        }
      }
    }
    if (tile.streams) Vec::end_streams();
  }

 private:
  static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

  /// Whether micro-kernels can read an operand where it lies.
  static bool can_be_read_in_place(const PanelSource& s) {
    return !s.is_bf16 && s.lanes_are_neighbours() && !s.depth_index && s.depth_stride <= kMostStrideInPlace;
  }
  /// Panels of `width` lanes from one lane and k on, where they lie.
  static Panels in_place(const PanelSource& s, int64_t lane, int64_t k, int64_t width) {
    return {static_cast<const float*>(s.data) + lane + k * s.depth_stride, s.depth_stride, width};
  }

  /// Part i of `count` of a range, divided along the dimension that is not contiguous in memory.
  static PanelRange part_of(const PanelSource& s, const PanelRange& r, int64_t i, int64_t count) {
    const int64_t extent = s.lanes_are_neighbours() ? r.depth : r.lanes;
    const int64_t begin = extent * i / count, size = extent * (i + 1) / count - begin;
    if (s.lanes_are_neighbours()) return {r.lane, r.lanes, r.k + begin, size};
    return {r.lane + begin, size, r.k, r.depth};
  }

  /// Multiplies all A panels by one strip. Partial sums of blocks of k are in the C tile.
  static void multiply(const GemmArgs& g, const GemmTile& tile, const Block& block, Panels a, const Strip& strip,
                       const GemmWorkspace& w, FetchList& fetch) {
    alignas(64) float last_sums[PanelRows * kPanelCols];
    const int64_t vectors = (strip.cols + kLanes - 1) / kLanes;
    for (int64_t row = 0; row < tile.rows; row += block.height, a.at += a.panel_stride) {
      const int64_t rows = smaller(block.height, tile.rows - row);
      const GemmTile part{tile.row + row, rows, tile.col + strip.col, strip.cols, tile.streams};
      // The sums of a panel are contiguous.
      float* const kept = w.tile_c + strip.col * kMaxTileRows + row * vectors * kLanes;
      Sums sums{block.first ? nullptr : kept, kept, vectors * kLanes, 1.0f, false};
      const bool to_c = block.last && is_stored_as_is(g, part);
      if (to_c) {
        sums = {sums.from, static_cast<float*>(g.c) + part.row * g.ldc + part.col, g.ldc, g.alpha,
                tile.streams && is_aligned(g)};
      } else if (block.last) {
        sums.to = last_sums;
      }
      const MicroKernel kernel = vectors <= PanelVectors ? kKernels[rows - 1][vectors - 1]
                                                         : kWideKernels[rows - 1][vectors - PanelVectors - 1];
      kernel(block.depth, a, strip.b, sums, fetch.take(block.depth));
      if (block.last && !to_c) TileStore<Vec>::store(g, part, last_sums, vectors * kLanes);
    }
  }

  /// Whether a micro-kernel may write a part of C directly.
  static bool is_stored_as_is(const GemmArgs& g, const GemmTile& part) {
    return g.c_dtype == DType::kF32 && g.beta == 0.0f && !g.row_scale && !g.bias && !g.addend &&
           part.cols % kLanes == 0;
  }

  static bool is_aligned(const GemmArgs& g) {
    return g.ldc % kLanes == 0 && reinterpret_cast<uintptr_t>(g.c) % sizeof(F) == 0;
  }

  /// Output of a micro-kernel: to[Rows][to_stride] = scale * (from[Rows][Vectors * kLanes] or 0 + the products).
  struct Sums {
    const float* from;
    float* to;
    int64_t to_stride;
    float scale;
    bool streams;  ///< non-temporal stores
  };

  using MicroKernel = void (*)(int64_t depth, const Panels& a, const Panels& b, const Sums& sums,
                               const char* const* fetch);

  /// Multiplies the first panel of A by one or two of B. Prefetches the memory in `fetch` meanwhile.
  template <int Rows, int Vectors>
  static void micro_kernel(int64_t depth, const Panels& a, const Panels& b, const Sums& sums,
                           const char* const* fetch) {
    const float *row_a = a.at, *rows_b = b.at;
    F sum[Rows][Vectors] = {};
    const int64_t step_a = a.k_stride, step_b = b.k_stride, panel_b = b.panel_stride;
    const auto step = [&] {
      F row_b[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        row_b[v] = Vec::load(rows_b + (v / PanelVectors) * panel_b + (v % PanelVectors) * kLanes);
      }
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const F element_a = Vec::broadcast(row_a[r]);
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) sum[r][v] = Vec::multiply_add(element_a, row_b[v], sum[r][v]);
      }
      row_a += step_a;
      rows_b += step_b;
    };
    int64_t rest = depth;
    if constexpr (kFetches) {
      for (; rest >= kFetchSteps; rest -= kFetchSteps, ++fetch) {
        const char* line = *fetch;
        for (const char* const last = line + kFetchLines * 64; line != last; line += 64) {
          __builtin_prefetch(line, 0, 2);
#pragma GCC unroll 2
          for (int i = 0; i < kFetchSteps / kFetchLines; ++i) step();
        }
      }
    }
    for (; rest > 0; --rest) step();
    // Copies, since a store may alias `sums` for the compiler.
    const auto [from, begin, stride, factor, streams] = sums;
    const F scale = Vec::broadcast(factor);
    if (from) add<Rows, Vectors>(sum, from);
    float* to = begin;
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r, to += stride) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        if (streams) {
          Vec::stream(to + v * kLanes, scale * sum[r][v]);
        } else {
          Vec::store(to + v * kLanes, scale * sum[r][v]);
        }
      }
    }
  }

  template <int Rows, int Vectors>
  static void add(F (&sum)[Rows][Vectors], const float* from) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sum[r][v] += Vec::load(from + (r * Vectors + v) * kLanes);
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

  /// Kernels by [rows - 1][vectors - 1], and those for strips of two panels.
  static constexpr auto kKernels = table<0>(std::make_integer_sequence<int, PanelRows>{});
  static constexpr auto kWideKernels = table<PanelVectors>(std::make_integer_sequence<int, kFewRows>{});
};

}  // namespace
}  // namespace hone
