// Many tensors in one launch: a table, passed as a kernel parameter, assigns chunks of tensors to CTAs. Hundreds of
// small tensors (adapters, norms) would otherwise cost a launch each.
#pragma once

#include <cstdint>

#include "core/base/error.h"
#include "core/base/host_device.h"

namespace hone::cuda {

/// Entry describes a tensor to the kernel. Kernel parameters are limited to 4096 bytes.
template <class Entry, int kEntries, int64_t kChunk>
struct TensorTable {
  Entry entries[kEntries];
  uint32_t first_chunk[kEntries];
  int32_t count = 0;
  uint32_t chunks = 0;  ///< CTAs to launch

  bool full() const { return count == kEntries; }
  /// Tensors without elements get no chunk and no entry.
  void add(const Entry& entry, int64_t elements) {
    if (elements == 0) return;
    const int64_t after = chunks + (elements + kChunk - 1) / kChunk;
    HONE_ASSERT(!full() && after <= INT32_MAX);
    entries[count] = entry;
    first_chunk[count++] = chunks;
    chunks = static_cast<uint32_t>(after);
  }

  /// The entry of a chunk: the last that starts at or before it.
  HONE_HOST_DEVICE int find(uint32_t chunk) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_chunk[middle] <= chunk ? low : high) = middle;
    }
    return low;
  }
  /// The chunk's first element in its tensor.
  HONE_HOST_DEVICE int64_t begin(int entry, uint32_t chunk) const {
    return int64_t{chunk - first_chunk[entry]} * kChunk;
  }
};

}  // namespace hone::cuda
