// Prefetches memory into a cache during the steps of a product. Included only by files that are compiled for AMX.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hone::amx {
namespace {

/// A cache level, as the locality argument of __builtin_prefetch.
enum Cache { kLevel2 = 2, kLevel1 = 3 };

/// Prefetches memory into a cache, some lines per call.
template <Cache To>
struct Fetch {
  const std::byte* at = nullptr;
  const std::byte* end = nullptr;
  int64_t lines = 0;  ///< per call

  [[gnu::always_inline]] void operator()() {
    for (int64_t i = 0; i < lines && at < end; ++i, at += 64) __builtin_prefetch(at, 0, To);
  }
};

/// Prefetches accumulators into L1 within `steps` steps.
[[maybe_unused]] Fetch<kLevel1> fetch_sums(const float* sums, int64_t floats, int64_t steps) {
  const auto* begin = reinterpret_cast<const std::byte*>(sums);
  return {begin, begin + floats * 4, floats / 16 / (steps > 0 ? steps : 1) + 1};
}

}  // namespace
}  // namespace hone::amx
