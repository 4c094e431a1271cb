// Shared by the general CUDA kernels of attention and cached_attention: tiles of rows within one document, and float32
// products of tiles in shared memory. Included by *_cuda.cu only.
#pragma once

#include "core/stream/cuda_launch.h"

namespace hone::cuda {

/// Rows of queries and of keys in a tile of scores; 16 x 16 threads hold 4 x 4 scores each.
inline constexpr int kTileRows = 64;
inline constexpr int kTileThreads = 256;
/// Elements of a chunk of head_dim.
inline constexpr int kChunk = 32;
/// Row stride in shared memory, in floats: a padding of 4 keeps 16-byte alignment and avoids bank conflicts.
inline constexpr int kChunkStride = kChunk + 4, kScoreStride = kTileRows + 4;

/// Number of CTAs such that each document has enough tiles of kTileRows. Tile t belongs to the last document n with
/// cu_seqlens[n] / kTileRows + n <= t: these starts increase by at least the tiles that the document needs.
inline unsigned tiles_of_documents(int64_t tokens, int64_t num_documents) {
  const int64_t tiles = tokens / kTileRows + num_documents;
  HONE_ASSERT(tiles <= INT32_MAX);
  return static_cast<unsigned>(tiles);
}

#ifdef __CUDACC__

struct DocumentTile {
  int document;
  int64_t begin;   ///< first row of the document
  int64_t length;  ///< rows of the document
  int64_t first;   ///< first row of the tile, relative to `begin`; >= `length`: an empty tile
};

__device__ inline DocumentTile find_document_tile(const int32_t* cu_seqlens, int num_documents, int tile) {
  int low = 0, high = num_documents;  // the document is in [low, high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (cu_seqlens[middle] / kTileRows + middle <= tile ? low : high) = middle;
  }
  const int64_t begin = cu_seqlens[low];
  return {low, begin, cu_seqlens[low + 1] - begin, int64_t{tile - (cu_seqlens[low] / kTileRows + low)} * kTileRows};
}

/// Row and column of a thread: it holds rows 4·thread_row() + i and columns thread_column() + 16·j of a tile, i, j < 4.
__device__ inline int thread_row() { return static_cast<int>(threadIdx.x) / 16; }
__device__ inline int thread_column() { return static_cast<int>(threadIdx.x) % 16; }

using Scores = float[4][4];

/// Loads dimensions [dim, dim + kChunk) of the first `valid` of kTileRows rows as float32; zero outside.
template <class T>
__device__ inline void load_chunk(float* chunk, const T* rows, int64_t row_stride, int64_t valid, int dim,
                                  int head_dim) {
  const int column = threadIdx.x % kChunk;
#pragma unroll
  for (int row = threadIdx.x / kChunk; row < kTileRows; row += kTileThreads / kChunk) {
    const bool inside = row < valid && dim + column < head_dim;
    chunk[row * kChunkStride + column] = inside ? to_float(rows[row * row_stride + dim + column]) : 0.0f;
  }
}

/// sums += a bᵀ over a chunk; a and b [kTileRows, kChunk].
__device__ inline void add_chunk_product(Scores& sums, const float* a, const float* b) {
  a += 4 * thread_row() * kChunkStride;
  b += thread_column() * kChunkStride;
#pragma unroll
  for (int c = 0; c < kChunk; c += 4) {
    float4 x[4], y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = *reinterpret_cast<const float4*>(a + i * kChunkStride + c);
#pragma unroll
    for (int j = 0; j < 4; ++j) y[j] = *reinterpret_cast<const float4*>(b + 16 * j * kChunkStride + c);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sums[i][j] = fmaf(x[i].x, y[j].x, sums[i][j]);
        sums[i][j] = fmaf(x[i].y, y[j].y, sums[i][j]);
        sums[i][j] = fmaf(x[i].z, y[j].z, sums[i][j]);
        sums[i][j] = fmaf(x[i].w, y[j].w, sums[i][j]);
      }
    }
  }
}

/// Writes a thread's part of a tile of scores to shared memory, [kTileRows, kTileRows].
__device__ inline void store_scores(float* tile, const Scores& scores) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      tile[(4 * thread_row() + i) * kScoreStride + thread_column() + 16 * j] = scores[i][j];
    }
  }
}

/// Sums of rows 4·thread_row() + i and dimensions 2·thread_column(), + 1 of each chunk.
template <int kChunks>
using RowSums = float[4][kChunks][2];

/// sums[.][chunk] += weights rows, weights [kTileRows, kTileRows], rows [kTileRows, kChunk].
template <int kChunks>
__device__ inline void add_weighted_rows(RowSums<kChunks>& sums, int chunk, const float* weights, const float* rows) {
  weights += 4 * thread_row() * kScoreStride;
  rows += 2 * thread_column();
#pragma unroll 4
  for (int r = 0; r < kTileRows; r += 4) {
    float4 w[4];
    float2 x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = *reinterpret_cast<const float4*>(weights + i * kScoreStride + r);
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = *reinterpret_cast<const float2*>(rows + (r + j) * kChunkStride);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 sum{sums[i][chunk][0], sums[i][chunk][1]};
      sum.x = fmaf(w[i].x, x[0].x, sum.x), sum.y = fmaf(w[i].x, x[0].y, sum.y);
      sum.x = fmaf(w[i].y, x[1].x, sum.x), sum.y = fmaf(w[i].y, x[1].y, sum.y);
      sum.x = fmaf(w[i].z, x[2].x, sum.x), sum.y = fmaf(w[i].z, x[2].y, sum.y);
      sum.x = fmaf(w[i].w, x[3].x, sum.x), sum.y = fmaf(w[i].w, x[3].y, sum.y);
      sums[i][chunk][0] = sum.x, sums[i][chunk][1] = sum.y;
    }
  }
}

#endif  // __CUDACC__

}  // namespace hone::cuda
