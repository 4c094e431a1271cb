#include "dist/transport/rank_sum_baseline.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/cpu/thread_pool.h"

namespace hone {

namespace {

constexpr int64_t kBlock = 2048;

/// T is the type of stored elements, Sum the type of the accumulator.
template <class T, class Sum>
void sum_blocks(std::byte* out, std::span<const std::byte* const> sources, int64_t count, ThreadPool& pool) {
  T* const to = reinterpret_cast<T*>(out);
  pool.parallel_ranges(count, kBlock, [&](int64_t begin, int64_t end) {
    Sum sum[kBlock];  // `out` may be one of the sources: read all of them first
    const int64_t n = end - begin;
    const T* first = reinterpret_cast<const T*>(sources[0]) + begin;
    for (int64_t i = 0; i < n; ++i) sum[i] = static_cast<Sum>(first[i]);
    for (const std::byte* source : sources.subspan(1)) {
      const T* from = reinterpret_cast<const T*>(source) + begin;
      for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<Sum>(from[i]);
    }
    for (int64_t i = 0; i < n; ++i) to[begin + i] = static_cast<T>(sum[i]);
  });
}

}  // namespace

void rank_sum(DType dtype, std::byte* out, std::span<const std::byte* const> sources, int64_t count, ThreadPool& pool) {
  HONE_ASSERT(!sources.empty());
  switch (dtype) {
    case DType::kF32:
      return sum_blocks<float, float>(out, sources, count, pool);
    case DType::kF64:
      return sum_blocks<double, double>(out, sources, count, pool);
    case DType::kBF16:
      return sum_blocks<BFloat16, float>(out, sources, count, pool);
    case DType::kI64:
      return sum_blocks<int64_t, int64_t>(out, sources, count, pool);
    default:
      HONE_ASSERT(false, "no sum of " + std::string(name_of(dtype)));
  }
}

}  // namespace hone
