// Products whose rows are sorted by group, C = A · Bᵀ (+ extra), on tier sm80: the loader, and the kernel with an
// epilogue as template parameter. Included by *_cuda.cu only.
#pragma once

#include <algorithm>

#include "core/stream/cuda_launch.h"
#include "kernels/cuda/grouped_gemm/grouped_gemm.h"
#include "kernels/cuda/grouped_gemm/sm80_tiles_cuda.h"
#include "kernels/cuda/tiers.h"

namespace hone::cuda::sm80 {

/// Arguments of a product; see GroupedGemmArgs.
struct ProductFactors {
  const __nv_bfloat16* a = nullptr;        // [·, k]
  const int32_t* a_rows = nullptr;         // [R] or null
  const __nv_bfloat16* w = nullptr;        // [groups, n, k] or [groups, k, n]
  const __nv_bfloat16* extra_a = nullptr;  // [R, extra_k]
  const __nv_bfloat16* extra_w = nullptr;  // [groups, n, extra_k]
  const int64_t* offsets = nullptr;
  int groups = 0, n = 0, k = 0, extra_k = 0, n_tiles = 0;
};

/// Column of C (row of K-major weights) of the tile's column `j`, or -1. With kHalves a tile has 128 columns of the
/// first half of n and 128 of the second, 32 of each per warp.
template <bool kHalves>
__device__ inline int column_of(const ProductFactors& f, int n_tile, int j) {
  if constexpr (kHalves) {
    const int column = n_tile * (kTileColumns / 2) + j / 64 * 32 + j % 32, half = f.n / 2;
    return column < half ? column + j / 32 % 2 * half : -1;
  } else {
    const int column = n_tile * kTileColumns + j;
    return column < f.n ? column : -1;
  }
}

/// Loads stages in the order of the CTA's tiles. Reads the next step's tile and the rows of a gathered operand one step
/// ahead.
template <class Shape, bool kWMnMajor, bool kHalves>
class ProductLoader {
 public:
  __device__ explicit ProductLoader(const ProductFactors& f) : f_(f), tiles_(f.offsets, f.groups, f.n_tiles) {
    begin_tile();
  }

  __device__ void load(uint32_t stage, int part) {
    if (k_ < 0) return;
    if (k_ < f_.k) {
      load_a<false>(stage, f_.a, f_.k, k_, part);
      if constexpr (kWMnMajor) {
        load_mn_major(stage + Shape::kABytes, part);
      } else {
        load_k_major(stage + Shape::kABytes, f_.w, f_.k, k_, part);
      }
    } else {
      load_a<true>(stage, f_.extra_a, f_.extra_k, k_ - padded_k(), part);
      load_k_major(stage + Shape::kABytes, f_.extra_w, f_.extra_k, k_ - padded_k(), part);
    }
    if (part + 1 < Shape::kParts) return;
    k_ += Shape::kDepth;
    if (k_ >= padded_k() + f_.extra_k) begin_tile();
  }

 private:
  static constexpr int kUnits = Shape::kDepth / 8,
                       kLines = kProductThreads / kUnits;  // copied in a pass of all threads
  static constexpr int kAPasses = kTileRows / kLines, kBPasses = kTileColumns / kLines;
  static constexpr int kParts = Shape::kParts;
  static_assert(kAPasses % kParts == 0 && kBPasses % kParts == 0);

  __device__ static int line() { return static_cast<int>(threadIdx.x) / kUnits; }
  __device__ static int unit() { return static_cast<int>(threadIdx.x) % kUnits; }
  __device__ int padded_k() const { return (f_.k + Shape::kDepth - 1) / Shape::kDepth * Shape::kDepth; }

  __device__ void begin_tile() {
    if (!tiles_.next(tile_)) {
      k_ = -1;
      return;
    }
    k_ = 0;
#pragma unroll
    for (int p = 0; p < kAPasses; ++p) {
      const int row = line() + p * kLines;
      rows_[p] = -1;
      if (row < tile_.rows) rows_[p] = f_.a_rows != nullptr ? __ldg(f_.a_rows + tile_.row + row) : tile_.row + row;
    }
  }

  template <bool kExtra>
  __device__ void load_a(uint32_t to, const __nv_bfloat16* a, int width, int k, int part) const {
    const int column = k + unit() * 8;
    to = SharedLines<kTileRows, Shape::kDepth>{to}.unit(line(), unit());
    width = recomputed(width);
#pragma unroll
    for (int i = 0; i < kAPasses / kParts; ++i) {
      const int p = part * (kAPasses / kParts) + i;
      const bool exists = rows_[p] >= 0 && column < width;
      const int64_t row = kExtra ? tile_.row + line() + p * kLines : rows_[p];
      cp_async_16(to + static_cast<uint32_t>(p * kLines * Shape::kDepth * 2), exists ? a + (row * width + column) : a,
                  exists);
    }
  }
  __device__ void load_k_major(uint32_t to, const __nv_bfloat16* w, int width, int k, int part) const {
    const int element = k + unit() * 8;
    to = SharedLines<kTileColumns, Shape::kDepth>{to}.unit(line(), unit());
    width = recomputed(width);
    const int64_t group_row = int64_t{tile_.group} * f_.n;
#pragma unroll
    for (int i = 0; i < kBPasses / kParts; ++i) {
      const int p = part * (kBPasses / kParts) + i;
      const int column = column_of<kHalves>(f_, tile_.n_tile, line() + p * kLines);
      const bool exists = column >= 0 && element < width;
      cp_async_16(to + static_cast<uint32_t>(p * kLines * Shape::kDepth * 2),
                  exists ? w + ((group_row + column) * width + element) : w, exists);
    }
  }
  __device__ void load_mn_major(uint32_t to, int part) const {
    constexpr int kLineUnits = kTileColumns / 8, kPassLines = kProductThreads / kLineUnits;
    constexpr int kPasses = Shape::kDepth / kPassLines / kParts;
    const int first = static_cast<int>(threadIdx.x) / kLineUnits, of_line = static_cast<int>(threadIdx.x) % kLineUnits;
    const int column = tile_.n_tile * kTileColumns + of_line * 8, n = recomputed(f_.n);
    to = SharedLines<Shape::kDepth, kTileColumns>{to}.unit(first, of_line);
    const int64_t group_row = int64_t{tile_.group} * f_.k + k_;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int line = (part * kPasses + i) * kPassLines;
      const bool exists = column < n && k_ + first + line < f_.k;
      cp_async_16(to + static_cast<uint32_t>(line * kTileColumns * 2),
                  exists ? f_.w + ((group_row + first + line) * n + column) : f_.w, exists);
    }
  }

  const ProductFactors& f_;
  RowTiles tiles_;
  GroupTile tile_;
  int k_ = -1;  // where the next step is; from padded_k() on in the extra product; -1: no tiles left
  int rows_[kAPasses];
};

/// Each warp calls Epilogue(args, operands).write(accumulators, tile) for its 64 x 64 of a tile.
template <class Shape, bool kWMnMajor, class Epilogue>
__global__ void __launch_bounds__(kProductThreads, 1)
    grouped_product(const __grid_constant__ ProductFactors f, const __grid_constant__ typename Epilogue::Args args) {
  extern __shared__ __align__(128) char memory[];
  StageRing<Shape> ring(memory);
  ProductLoader<Shape, kWMnMajor, Epilogue::kHalves> loader(f);
  ring.fill(loader);
  RowTiles tiles(f.offsets, f.groups, f.n_tiles);
  GroupTile tile;
  const int steps = (f.k + Shape::kDepth - 1) / Shape::kDepth;
  const int extra_steps = (f.extra_k + Shape::kDepth - 1) / Shape::kDepth;
  while (tiles.next(tile)) {
    WarpSums sums;
    clear(sums);
    add_product<Shape, false, kWMnMajor>(sums, ring, steps, loader);
    add_product<Shape, false, false>(sums, ring, extra_steps, loader);
    Epilogue(args, f).write(sums, tile);
  }
  cp_async_wait<0>();
}

inline ProductFactors product_factors(const RowGroups& groups, const Tensor& a, const Tensor& a_rows, const Tensor& w,
                                      bool w_transposed, const Tensor& extra_a, const Tensor& extra_w, bool halves) {
  ProductFactors f;
  f.a = elements<__nv_bfloat16>(a);
  f.a_rows = a_rows.defined() ? a_rows.as<int32_t>() : nullptr;
  f.w = elements<__nv_bfloat16>(w);
  f.extra_a = elements<__nv_bfloat16>(extra_a);
  f.extra_w = elements<__nv_bfloat16>(extra_w);
  f.offsets = groups.offsets.as<int64_t>();
  f.groups = static_cast<int>(groups.groups());
  f.n = static_cast<int>(w.shape[w_transposed ? 2 : 1]);
  f.k = static_cast<int>(w.shape[w_transposed ? 1 : 2]);
  f.extra_k = extra_a.defined() ? static_cast<int>(extra_a.shape[1]) : 0;
  const int columns = halves ? f.n / 2 : f.n, of_tile = halves ? kTileColumns / 2 : kTileColumns;
  f.n_tiles = (columns + of_tile - 1) / of_tile;
  return f;
}

/// Launches min(multiprocessors, tiles) CTAs.
template <class Kernel, class... Args>
void launch_persistent(const Context& context, const char* doing, Kernel* kernel, size_t shared, int64_t tiles,
                       const Args&... args) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), doing);
  const auto ctas = std::min<int64_t>(queue_of(context).multiprocessors(), tiles);
  kernel<<<static_cast<unsigned>(ctas), kProductThreads, shared, stream_of(context)>>>(args...);
  check_launch(doing);
}

template <bool kWMnMajor, class Epilogue>
void launch_product(const Context& context, const char* doing, const ProductFactors& factors, int64_t rows,
                    const typename Epilogue::Args& args) {
  const int64_t tiles = (rows / kTileRows + std::min<int64_t>(rows, factors.groups)) * factors.n_tiles;
  HONE_ASSERT(tiles <= INT32_MAX / 2);
  with_product_shape(kernel_tiers(context).shared_memory, 0, [&](auto shape) {
    using Shape = decltype(shape);
    launch_persistent(context, doing, grouped_product<Shape, kWMnMajor, Epilogue>, Shape::kBytes, tiles, factors, args);
  });
}

}  // namespace hone::cuda::sm80
