// Gradients of a weight that all rows of a tensor share: summed over chunks of rows, then over chunks, in an order that
// does not depend on the number of threads. GPU version: chunk_sums_cuda.h.
#pragma once

#include <algorithm>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"

namespace hone {

/// Calls add(row, sums) for each row, in order within a chunk, with chunks in parallel. `sums` is the chunk's row of
/// `partial` [chunks, n] float32, zeroed before its first row; null if `partial` is undefined.
template <class Add>
void add_rows_by_chunk(ThreadPool& pool, int64_t rows, int64_t rows_per_chunk, const Tensor& partial, const Add& add) {
  pool.parallel_for((rows + rows_per_chunk - 1) / rows_per_chunk, [&](int64_t chunk, int) {
    float* sums = nullptr;
    if (partial.defined()) {
      sums = partial.as<float>() + chunk * partial.shape[1];
      std::fill_n(sums, partial.shape[1], 0.0f);
    }
    const int64_t end = std::min(rows, (chunk + 1) * rows_per_chunk);
    for (int64_t row = chunk * rows_per_chunk; row < end; ++row) add(row, sums);
  });
}

/// dw = Σ over chunks of partial [chunks, n], in order, + beta · dw.
inline void sum_chunks(ThreadPool& pool, const Tensor& partial, const GradDest& dw) {
  const int64_t chunks = partial.shape[0], n = partial.shape[1];
  const RowMath& math = row_math();
  pool.parallel_ranges(n, 256, [&](int64_t begin, int64_t end) {
    float sum[kRowBlock] = {};
    for (int64_t c = 0; c < chunks; ++c) math.add_scaled(1.0f, partial.as<float>() + c * n + begin, sum, end - begin);
    store_block(math, sum, dw, begin, end - begin);
  });
}

}  // namespace hone
