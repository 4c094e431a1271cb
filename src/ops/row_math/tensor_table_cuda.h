// Many tensors in one launch: a table that travels as a kernel's parameter says which block works on which chunk of
// which tensor. Hundreds of small tensors (adapters, norms) would otherwise cost a launch each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "core/host_device.h"

namespace hone::cuda {

/// Entry is what a kernel knows of a tensor. Kernel parameters hold 4096 bytes.
template <class Entry, int kEntries, int64_t kChunk>
struct TensorTable {
  Entry entries[kEntries];
  uint32_t first_chunk[kEntries];
  int32_t count = 0;
  uint32_t chunks = 0;  ///< blocks to launch

  bool full() const { return count == kEntries; }
  /// Tensors without elements take no chunk and no entry.
  void add(const Entry& entry, int64_t elements) {
    if (elements == 0) return;
    const int64_t after = chunks + (elements + kChunk - 1) / kChunk;
    HONE_ASSERT(!full() && after <= INT32_MAX);
    entries[count] = entry;
    first_chunk[count++] = chunks;
    chunks = static_cast<uint32_t>(after);
  }

  /// The entry that a chunk belongs to: the last that starts at or before it.
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

/// Calls f with each of the formats that the tensors have, once.
template <class Tensor, class FormatsOf, class F>
void for_each_formats(const std::vector<Tensor>& tensors, FormatsOf formats_of, F f) {
  std::vector<decltype(formats_of(tensors.front()))> done;
  for (const Tensor& tensor : tensors) {
    const auto formats = formats_of(tensor);
    if (std::find(done.begin(), done.end(), formats) != done.end()) continue;
    done.push_back(formats);
    f(formats);
  }
}

/// Launches with as many tables as the wanted tensors need; entries say how many elements they have.
template <class Table, class Tensor, class Wanted, class EntryOf, class Launch>
void launch_tables(const std::vector<Tensor>& tensors, Wanted wanted, EntryOf entry_of, Launch launch) {
  Table table;
  const auto flush = [&] {
    if (table.chunks == 0) return;
    launch(table);
    table = {};
  };
  for (const Tensor& tensor : tensors) {
    if (!wanted(tensor)) continue;
    if (table.full()) flush();
    const auto entry = entry_of(tensor);
    table.add(entry, entry.elements);
  }
  flush();
}

}  // namespace hone::cuda
