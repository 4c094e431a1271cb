// The keys and values of earlier passes, as kernels find them. Included by *_cuda.cu only.
#pragma once

#include "ops/attention/cache_pages.h"

namespace hone::cuda {

/// Keys and values are rows [pages · kCachePage, …] of a cache, and row r of document n, which is its token
/// lengths[n] + r, attends to positions 0 to lengths[n] + r.
struct CachedKeys {
  const int32_t* lengths = nullptr;  ///< [N]; null: k and v are the rows of q's documents
  const int32_t* pages = nullptr;    ///< [N, most_pages]
  int most_pages = 0;                ///< pages that a document has at most

#ifdef __CUDACC__
  __device__ int64_t capacity() const { return most_pages * kCachePage; }
  __device__ const int32_t* pages_of(int n) const { return pages + int64_t{n} * most_pages; }
  /// The row of a position of document n, which is below capacity().
  __device__ int64_t row(int n, int64_t position) const { return cache_row(pages_of(n), position); }
#endif
};

}  // namespace hone::cuda
