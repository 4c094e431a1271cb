// Prefetches of the tile kernel: while it multiplies, it prefetches the memory that the next packing reads. Without
// prefetches, packing was measured to add a third to the time of 64 rows. Included only by tile_kernel_*.cpp; see
// tile_vector.h.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm/tile_packing.h"

namespace hone {
namespace {

/// A micro-kernel prefetches one part of kFetchLines cache lines every kFetchSteps of k.
inline constexpr int64_t kFetchSteps = 16, kFetchLines = 8;

/// Parts of memory in prefetch order.
class FetchList {
  static constexpr int64_t kLine = 64, kPartBytes = kFetchLines * kLine;
  static constexpr int64_t kCapacity = 1024;

 public:
  /// `resident`: kFetchLines lines that are already in the caches.
  explicit FetchList(const void* resident) {
    for (const char*& part : nothing_) part = static_cast<const char*>(resident);
  }

  void clear() { count_ = next_ = 0; }

  /// Adds the parts of a range up to the capacity; skips ranges that are gathered element by element.
  void add(const PanelSource& s, const PanelRange& r) {
    const int64_t size = s.is_bf16 ? 2 : 4;
    const bool by_k = s.lanes_are_neighbours();
    if (!by_k && (s.depth_stride != 1 || s.depth_index)) return;
    const int32_t* const index = by_k ? s.depth_index : s.lane_index;
    const int64_t first = by_k ? r.k : r.lane, rows = by_k ? r.depth : r.lanes;
    const int64_t stride = (by_k ? s.depth_stride : s.lane_stride) * size;
    const char* const data = static_cast<const char*>(s.data) + (by_k ? r.lane : r.k) * size;
    const int64_t bytes = (by_k ? r.lanes : r.depth) * size;
    for (int64_t i = first; i < first + rows; ++i) {
      const char* const row = data + (index ? index[i] : i) * stride;
      for (int64_t at = 0; at < bytes; at += kPartBytes) {
        if (count_ == kCapacity) return;
        parts_[count_++] = row + at;
      }
    }
  }

  /// The next parts for a panel of this depth; after the last one, memory that is already cached.
  const char* const* take(int64_t depth) {
    const int64_t count = depth / kFetchSteps;
    if (next_ + count > count_) return nothing_;
    next_ += count;
    return parts_ + next_ - count;
  }

 private:
  int64_t count_ = 0, next_ = 0;
  const char* parts_[kCapacity];
  const char* nothing_[kGemmDepth / kFetchSteps];
};

}  // namespace
}  // namespace hone
