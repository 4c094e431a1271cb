// PeerMemory: memory of a group of ranks of one host that each of them copies from directly. A copy needs no action of
// the rank that owns the memory, and on a GPU no multiprocessor: copy engines read over NVLink or PCIe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/memory/mapped_memory.h"
#include "core/stream/stream.h"
#include "dist/control/descriptor_exchange.h"

namespace hone {

/// Collective of all ranks: the memory `own` of each rank of this rank's group, by place, as this process maps it.
/// Empty on all ranks, with a reason, if one cannot map the memory of another of its group: other hosts, GPUs without
/// access to each other.
std::vector<MappableMemory> exchange_memory(Control& control, RankRange group, Device device, const MappableMemory& own,
                                            std::string& why_not);

class PeerMemory {
 public:
  /// Collective of all ranks: lets the ranks of each group read `own` of every other one, on the stream's device.
  /// Returns once the work queued on every rank's stream has run, so that what it wrote can be read. `offsets`, as many
  /// on every rank, are positions in `own`. Returns null on all ranks, with a reason, if one cannot read the memory of
  /// another of its group: other hosts, GPUs without access to each other.
  static std::unique_ptr<PeerMemory> connect(Control& control, RankRange group, Stream& stream,
                                             const MappableMemory& own, const std::vector<size_t>& offsets,
                                             std::string& why_not);

  explicit PeerMemory(Device device) : device_(device) {}

  /// The address of position number `index` of the rank at a place of the group, for copies.
  std::byte* at(int place, size_t index) const {
    return ranges_[static_cast<size_t>(place)].data() + offsets_[static_cast<size_t>(place)][index];
  }

 private:
  Device device_;
  std::vector<AddressRange> ranges_;          // one for each rank of the group
  std::vector<std::vector<size_t>> offsets_;  // one list for each rank of the group
};

}  // namespace hone
