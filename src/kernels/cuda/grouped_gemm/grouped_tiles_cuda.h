// Tiles of products over groups of rows on any GPU: operands are staged in shared memory as float32 and accumulated
// with float32 FMA in increasing k. Included by *_cuda.cu only.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/stream/cuda_launch.h"

namespace hone::cuda {

constexpr int kTile = 64;       // rows and columns of a CTA's tile of C
constexpr int kTileDepth = 16;  // elements of k staged in shared memory
constexpr int kTileThreads = 256;

/// Element (i, d), with i along an edge of the tile and d along the inner dimension, is data[I · stride + D ·
/// depth_stride], where I = index ? index[i] : i and D = depth_index ? depth_index[d] : d.
template <class T>
struct TileOperand {
  const T* data = nullptr;
  int64_t stride = 0, depth_stride = 0;
  const int32_t* index = nullptr;
  const int32_t* depth_index = nullptr;
  int64_t count = 0;  ///< i < count
};

/// Rows [begin, end) of a group that a CTA processes; empty for CTAs after the last tile.
struct GroupTile {
  int64_t begin = 0, end = 0;
  int group = -1;
};

/// Host-side upper bound of the number of tiles of `rows_per_tile` rows that groups can have.
inline int64_t max_group_tiles(int64_t rows, int64_t groups, int64_t rows_per_tile) {
  return rows / rows_per_tile + (rows < groups ? rows : groups);
}

/// Tile `tile` if every group is divided into tiles of kRows rows, groups in order. Called by all threads of the CTA.
template <int kRows>
__device__ inline GroupTile find_group_tile(const int64_t* offsets, int groups, int64_t tile) {
  __shared__ GroupTile found;
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    if (lane == 0) found = {};
    __syncwarp();
    int64_t before = 0;  // tiles of earlier groups
    for (int first = 0; first < groups; first += 32) {
      const int group = first + lane;
      const int64_t begin = group < groups ? offsets[group] : 0, end = group < groups ? offsets[group + 1] : 0;
      const int64_t tiles = (end - begin + kRows - 1) / kRows;
      int64_t up_to = tiles;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int64_t lower = __shfl_up_sync(0xffffffffu, up_to, step);
        if (lane >= step) up_to += lower;
      }
      const int64_t in_group = tile - before - (up_to - tiles);
      const bool here = in_group >= 0 && in_group < tiles;
      if (here) {
        const int64_t row = begin + in_group * kRows;
        found = {row, row + kRows < end ? row + kRows : end, group};
      }
      if (__any_sync(0xffffffffu, here)) break;
      before += __shfl_sync(0xffffffffu, up_to, 31);
    }
  }
  __syncthreads();
  return found;
}

/// Thread (row, column) = (threadIdx.x / 16, threadIdx.x % 16) owns elements 4 · row + i, 4 · column + j of a tile.
struct TileSums {
  float values[4][4] = {};
};

struct TileMemory {
  alignas(16) float a[kTileDepth][kTile + 4];
  alignas(16) float b[kTileDepth][kTile + 4];
};

/// Loads one step of the inner dimension into shared memory; zeros outside of the matrix.
template <class T>
__device__ inline void load_tile(const TileOperand<T>& from, int64_t first, int64_t depth,
                                 float (&to)[kTileDepth][kTile + 4]) {
  // Consecutive threads read consecutive addresses, whichever dimension is contiguous.
  const bool depth_first = from.depth_stride == 1;
#pragma unroll
  for (int step = 0; step < kTile * kTileDepth / kTileThreads; ++step) {
    const int at = static_cast<int>(threadIdx.x) + step * kTileThreads;
    const int d = depth_first ? at % kTileDepth : at / kTile, i = depth_first ? at / kTileDepth : at % kTile;
    float value = 0.0f;
    if (i < from.count && first + d < depth) {
      const int64_t row = from.index != nullptr ? from.index[i] : i;
      const int64_t inner = from.depth_index != nullptr ? from.depth_index[first + d] : first + d;
      value = to_float(from.data[row * from.stride + inner * from.depth_stride]);
    }
    to[d][i] = value;
  }
}

/// sums[i, j] += Σ_{d < depth} a(i, d) · b(j, d).
template <class T>
__device__ inline void add_product(const TileOperand<T>& a, const TileOperand<T>& b, int64_t depth, TileMemory& memory,
                                   TileSums& sums) {
  const int row = static_cast<int>(threadIdx.x) / 16 * 4, column = static_cast<int>(threadIdx.x) % 16 * 4;
  for (int64_t first = 0; first < depth; first += kTileDepth) {
    __syncthreads();
    load_tile(a, first, depth, memory.a);
    load_tile(b, first, depth, memory.b);
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kTileDepth; ++d) {
      const float4 left = *reinterpret_cast<const float4*>(&memory.a[d][row]);
      const float4 right = *reinterpret_cast<const float4*>(&memory.b[d][column]);
      const float l[4] = {left.x, left.y, left.z, left.w}, r[4] = {right.x, right.y, right.z, right.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums.values[i][j] += l[i] * r[j];
      }
    }
  }
}

/// Calls f(i, j, sum) for each of this thread's elements of the tile inside [rows, columns].
template <class F>
__device__ inline void for_each_sum(const TileSums& sums, int64_t rows, int64_t columns, F f) {
  const int row = static_cast<int>(threadIdx.x) / 16 * 4, column = static_cast<int>(threadIdx.x) % 16 * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (row + i < rows && column + j < columns) f(row + i, column + j, sums.values[i][j]);
    }
  }
}

}  // namespace hone::cuda
