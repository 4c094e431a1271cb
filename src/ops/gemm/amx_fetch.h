// Fetching memory into a cache beside the steps of a product. Included only by files that are compiled for AMX.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace hone::amx {
namespace {

/// Fetches memory into a cache, some lines at a time.
template <_mm_hint Level>
struct Fetch {
  const std::byte* at = nullptr;
  const std::byte* end = nullptr;
  int64_t lines = 0;  ///< at a time

  [[gnu::always_inline]] void operator()() {
    for (int64_t i = 0; i < lines && at < end; ++i, at += 64) _mm_prefetch(reinterpret_cast<const char*>(at), Level);
  }
};

/// Sums into level 1, within `steps` steps.
[[maybe_unused]] Fetch<_MM_HINT_T0> fetch_sums(const float* sums, int64_t floats, int64_t steps) {
  const auto* begin = reinterpret_cast<const std::byte*>(sums);
  return {begin, begin + floats * 4, floats / 16 / (steps > 0 ? steps : 1) + 1};
}

}  // namespace
}  // namespace hone::amx
