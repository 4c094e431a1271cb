// Products of bfloat16 tiles in shared memory on tensor cores, from sm_80 on, for recurrences by chunks. A chunk's
// products are 64 rows high and depend on each other, so they are bound by latency: each warp issues its own products
// and keeps results in registers between them. Included by *_cuda.cu only.
#pragma once

#include "core/stream/cuda_launch.h"
#include "kernels/cuda/ptx_cuda.h"

namespace hone::cuda {

/// Row stride in shared memory: a padding of 8 elements avoids bank conflicts.
constexpr int padded(int columns) { return columns + 8; }

#ifdef __CUDACC__

using Half = __nv_bfloat16;

/// An operand in shared memory. Element (i, depth) is stored at [i, depth], or at [depth, i] if kByDepth, with row
/// stride kStride.
template <int kStride, bool kByDepth>
struct Factor {
  static constexpr int kUnrolled = 8;  // steps of a product along depth
  const Half* data;

  __device__ static void load(uint32_t (&r)[4], const Half* at) {
    if constexpr (kByDepth) {
      ldmatrix_x4_trans(r, shared_address(at));
    } else {
      ldmatrix_x4(r, shared_address(at));
    }
  }
  /// As operand A: rows [row, row + 16), depth [depth, depth + 16).
  __device__ void load_first(uint32_t (&r)[4], int row, int depth) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, far = lane / 16 * 8, near = lane / 8 % 2 * 8;
    const Half* at = kByDepth ? data + (depth + lane % 8 + far) * kStride + row + near
                              : data + (row + lane % 8 + near) * kStride + depth + far;
    load(r, at);
  }
  /// As operand B: columns [column, column + 16), depth [depth, depth + 16).
  __device__ void load_second(uint32_t (&r)[4], int column, int depth) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, far = lane / 16 * 8, near = lane / 8 % 2 * 8;
    const Half* at = kByDepth ? data + (depth + lane % 8 + near) * kStride + column + far
                              : data + (column + lane % 8 + far) * kStride + depth + near;
    load(r, at);
  }
};
/// K-major: a line per row or column of the product.
template <int kColumns>
using ByRow = Factor<padded(kColumns), false>;
/// MN-major: a line per step of the depth.
template <int kColumns>
using ByDepth = Factor<padded(kColumns), true>;

/// An operand in device memory, read in pairs of elements because it does not fit in shared memory: rows `stride`
/// apart, zeros from `rows` on.
struct RowsOfMemory {
  static constexpr int kUnrolled = 2;  // more would need more registers than a thread has
  const Half* data;
  int64_t stride;
  int rows;

  __device__ uint32_t pair(int row, int depth) const {
    return row < rows ? __ldg(reinterpret_cast<const uint32_t*>(data + row * stride + depth)) : 0u;
  }
  __device__ void load_first(uint32_t (&r)[4], int row, int depth) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    row += lane / 4, depth += lane % 4 * 2;
    r[0] = pair(row, depth), r[1] = pair(row + 8, depth), r[2] = pair(row, depth + 8), r[3] = pair(row + 8, depth + 8);
  }
  __device__ void load_second(uint32_t (&r)[4], int column, int depth) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    column += lane / 4, depth += lane % 4 * 2;
    r[0] = pair(column, depth), r[1] = pair(column, depth + 8);
    r[2] = pair(column + 8, depth), r[3] = pair(column + 8, depth + 8);
  }
};

/// A warp's part of a product: 16 kHigh rows, 8 kWide columns. In this lane, [m][n][i] is element (16 m + sum_row(i), 8
/// n + sum_column() + i % 2).
template <int kHigh, int kWide>
using Sums = float[kHigh][kWide][4];

__device__ inline int sum_row(int i) { return static_cast<int>(threadIdx.x) % 32 / 4 + i / 2 * 8; }
__device__ inline int sum_column() { return static_cast<int>(threadIdx.x) % 4 * 2; }

/// sums += a b over depth [begin, end), multiples of 16; a from row `row` on, b from column `column` on.
template <int kHigh, int kWide, class A, class B>
__device__ inline void add_product(Sums<kHigh, kWide>& sums, const A& a, int row, const B& b, int column, int begin,
                                   int end) {
  static_assert(kWide % 2 == 0);
  constexpr int kUnrolled = A::kUnrolled < B::kUnrolled ? A::kUnrolled : B::kUnrolled;
#pragma unroll kUnrolled
  for (int depth = begin; depth < end; depth += 16) {
    uint32_t first[kHigh][4];
#pragma unroll
    for (int m = 0; m < kHigh; ++m) a.load_first(first[m], row + 16 * m, depth);
#pragma unroll
    for (int n = 0; n < kWide; n += 2) {
      uint32_t second[4];
      b.load_second(second, column + 8 * n, depth);
#pragma unroll
      for (int m = 0; m < kHigh; ++m) {
        mma_m16n8k16(sums[m][n], first[m], second[0], second[1]);
        mma_m16n8k16(sums[m][n + 1], first[m], second[2], second[3]);
      }
    }
  }
}

/// first += a matrix and second += b matrix over depth [0, end); loads the matrix once.
template <int kWide, class A, class B>
__device__ inline void add_products(Sums<1, kWide>& first, Sums<1, kWide>& second, const A& a, const A& b, int row,
                                    const B& matrix, int column, int end) {
  static_assert(kWide % 2 == 0);
#pragma unroll
  for (int depth = 0; depth < end; depth += 16) {
    uint32_t of_a[4], of_b[4];
    a.load_first(of_a, row, depth);
    b.load_first(of_b, row, depth);
#pragma unroll
    for (int n = 0; n < kWide; n += 2) {
      uint32_t elements[4];
      matrix.load_second(elements, column + 8 * n, depth);
      mma_m16n8k16(first[0][n], of_a, elements[0], elements[1]);
      mma_m16n8k16(second[0][n], of_b, elements[0], elements[1]);
      mma_m16n8k16(first[0][n + 1], of_a, elements[2], elements[3]);
      mma_m16n8k16(second[0][n + 1], of_b, elements[2], elements[3]);
    }
  }
}

/// Calls f(row, column, first, second) for this lane's pairs of adjacent elements (row, column) and (row, column + 1)
/// of the warp's part.
template <int kHigh, int kWide, class F>
__device__ inline void for_pairs(Sums<kHigh, kWide>& sums, const F& f) {
#pragma unroll
  for (int m = 0; m < kHigh; ++m) {
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        f(16 * m + sum_row(i), 8 * n + sum_column(), sums[m][n][i], sums[m][n][i + 1]);
      }
    }
  }
}

/// Σ over the four lanes that share a row.
__device__ inline float row_lanes_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}
/// Σ over the eight lanes that share a column.
__device__ inline float column_lanes_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 4);
  value += __shfl_xor_sync(0xffffffffu, value, 8);
  return value + __shfl_xor_sync(0xffffffffu, value, 16);
}

__device__ inline void store_pair(Half* to, float first, float second) {
  *reinterpret_cast<uint32_t*>(to) = pack_bf16(first, second);
}
__device__ inline float2 load_pair(const Half* from) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
}

/// Starts copies of kRows rows of kColumns elements, `stride` apart, to shared memory; rows from `valid` on are zeros.
/// A thread copies the same columns of every kStep-th row, so that it computes one address.
template <int kRows, int kColumns, int kThreads>
__device__ inline void copy_rows(Half* to, const Half* from, int64_t stride, int valid) {
  constexpr int kPieces = kColumns / 8, kStep = kThreads / kPieces;
  static_assert(kThreads % kPieces == 0 && kRows % kStep == 0);
  const int thread = recomputed(static_cast<int>(threadIdx.x)), row = thread / kPieces, column = thread % kPieces * 8;
  const uint32_t address = shared_address(to + row * padded(kColumns) + column);
  const Half* source = from + row * stride + column;
#pragma unroll
  for (int i = 0; i < kRows; i += kStep, source += kStep * stride) {
    const bool exists = row + i < valid;
    cp_async_16(address + static_cast<uint32_t>(i * padded(kColumns) * 2), exists ? source : from, exists);
  }
}

/// Stores a warp's 16 rows of 32 kQuads columns as bfloat16 in whole vectors, row r to to + r · stride, of which the
/// first `valid` exist; with kAdd adds to what is there.
template <int kQuads, bool kAdd>
__device__ inline void store_sums(Half* to, int64_t stride, const Sums<1, 4 * kQuads>& sums, int valid) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = sum_row(2 * half);
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      Half* const at = to + row * stride + 32 * quad + 4 * sum_column();
      uint32_t packed[4] = {};
      if constexpr (kAdd) {
        if (row < valid) reinterpret_cast<uint4&>(packed) = *reinterpret_cast<const uint4*>(at);
        transpose_quad(packed);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto& pair = sums[0][4 * quad + i];
        const float2 before = unpack_bf16(packed[i]);
        packed[i] = pack_bf16(before.x + pair[2 * half], before.y + pair[2 * half + 1]);
      }
      transpose_quad(packed);
      if (row < valid) *reinterpret_cast<uint4*>(at) = {packed[0], packed[1], packed[2], packed[3]};
    }
  }
}

/// Writes the first `valid` rows of a tile to memory in whole vectors.
template <int kRows, int kColumns, int kThreads>
__device__ inline void write_rows(Half* to, int64_t stride, const Half* from, int valid) {
  constexpr int kPieces = kColumns / 8;
#pragma unroll
  for (int piece = 0; piece < kRows * kPieces / kThreads; ++piece) {
    const int index = piece * kThreads + static_cast<int>(threadIdx.x);
    const int row = index / kPieces, column = index % kPieces * 8;
    if (row >= valid) continue;
    *reinterpret_cast<uint4*>(to + row * stride + column) =
        *reinterpret_cast<const uint4*>(from + row * padded(kColumns) + column);
  }
}

#endif  // __CUDACC__

}  // namespace hone::cuda
