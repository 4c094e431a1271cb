// PeerMemory: memory of the ranks of one host that each of them copies from directly. A copy needs no action of the
// rank that owns the memory, and on a GPU no multiprocessor: copy engines read over NVLink or PCIe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/mapped_memory.h"
#include "core/stream.h"
#include "dist/control.h"

namespace hone {

class PeerMemory {
 public:
  /// Collective: lets all ranks read `own` of every rank, on the stream's device. Returns once the work queued on every
  /// rank's stream has run, so that what it wrote can be read. `offsets`, as many on every rank, are places in `own`.
  /// Returns null on all ranks, with a reason, if one cannot read another's memory: other hosts, GPUs without access to
  /// each other.
  static std::unique_ptr<PeerMemory> connect(Control& control, Stream& stream, const MappableMemory& own,
                                             const std::vector<size_t>& offsets, std::string& why_not);

  explicit PeerMemory(Device device) : device_(device) {}

  /// The address of place number `index` of a rank, for copies.
  std::byte* at(int rank, size_t index) const {
    return ranges_[static_cast<size_t>(rank)].data() + offsets_[static_cast<size_t>(rank)][index];
  }

 private:
  Device device_;
  std::vector<AddressRange> ranges_;          // of each rank
  std::vector<std::vector<size_t>> offsets_;  // of each rank
};

}  // namespace hone
