// Blocks of tensors as float32, for ops that consist of row_math functions.
#pragma once

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_math.h"
#include "tape/weight.h"

namespace hone {

/// Elements of a block: a few blocks as float32 fit in L1.
inline constexpr int64_t kRowBlock = 1024;

/// Elements [begin, begin + n) of a float32 or bfloat16 tensor as float32: in place, or widened to `buffer`.
inline const float* load_block(const RowMath& math, const Tensor& x, int64_t begin, float* buffer, int64_t n) {
  if (x.dtype == DType::kF32) return x.as<float>() + begin;
  math.widen(x.as<BFloat16>() + begin, buffer, n);
  return buffer;
}

/// Stores values to elements [begin, begin + n) of a float32 or bfloat16 tensor.
inline void store_block(const RowMath& math, const float* values, const Tensor& y, int64_t begin, int64_t n) {
  if (y.dtype == DType::kBF16) return math.narrow(values, y.as<BFloat16>() + begin, n);
  math.scale(1.0f, values, y.as<float>() + begin, n);
}

/// dst = values + beta · dst for elements [begin, begin + n), n <= kRowBlock; rounded once. Overwrites values.
inline void store_block(const RowMath& math, float* values, const GradDest& dest, int64_t begin, int64_t n) {
  if (dest.beta != 0.0f) {
    float buffer[kRowBlock];
    math.add(load_block(math, dest.dst, begin, buffer, n), values, values, n);
  }
  store_block(math, static_cast<const float*>(values), dest.dst, begin, n);
}

/// Calls body(begin, count) for the blocks of a row of n elements.
template <class Body>
void for_row_blocks(int64_t n, Body&& body) {
  for (int64_t begin = 0; begin < n; begin += kRowBlock) body(begin, n - begin < kRowBlock ? n - begin : kRowBlock);
}

/// Calls body(begin, count) for the blocks of a tensor of `numel` elements, on the threads of the pool.
template <class Body>
void parallel_blocks(ThreadPool& pool, int64_t numel, const Body& body) {
  pool.parallel_ranges(numel, 8 * kRowBlock, [&](int64_t range, int64_t range_end) {
    for_row_blocks(range_end - range, [&](int64_t offset, int64_t n) { body(range + offset, n); });
  });
}

/// to[i] = from[i] for float32 or bfloat16 tensors of equal sizes, rounded to nearest even.
inline void convert_elements(ThreadPool& pool, const Tensor& from, const Tensor& to) {
  const RowMath& math = row_math();
  parallel_blocks(pool, to.numel(), [&](int64_t begin, int64_t n) {
    float buffer[kRowBlock];
    store_block(math, load_block(math, from, begin, buffer, n), to, begin, n);
  });
}

/// sum[j] = Σ_t rows[t, j] + beta · sum for rows [T, J]; a task owns columns and adds the rows in order.
inline void sum_over_rows(ThreadPool& pool, const Tensor& rows, const GradDest& sum) {
  constexpr int64_t kColumns = 128;
  const RowMath& math = row_math();
  const int64_t count = rows.shape[0], columns = rows.shape[1];
  pool.parallel_ranges(columns, kColumns, [&](int64_t begin, int64_t end) {
    float sums[kColumns] = {}, buffer[kColumns];
    for (int64_t row = 0; row < count; ++row) {
      math.add_scaled(1.0f, load_block(math, rows, row * columns + begin, buffer, end - begin), sums, end - begin);
    }
    store_block(math, sums, sum, begin, end - begin);
  });
}

}  // namespace hone
