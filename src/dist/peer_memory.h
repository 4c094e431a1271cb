// PeerMemory: memory of the ranks of one host that each of them copies from directly. A copy needs no action of the
// rank that owns the memory, and on a GPU no multiprocessor: copy engines read over NVLink or PCIe.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/stream.h"
#include "dist/control.h"

namespace hone {

class PeerMemory {
 public:
  /// Collective: lets all ranks read the tensors `own` of every rank, as many on each, at least one. Returns once the
  /// work queued on every rank's stream has run, so that what it wrote can be read. GPUs of one host are read over
  /// CUDA's interprocess handles, ranks that are threads directly. Returns null on all ranks, with a reason, if one
  /// cannot read another's memory: other hosts, GPUs without access to each other, CPU ranks in processes of their own.
  ///
  /// No rank may free the tensors while another copies from them: end with a collective after the last copy.
  static std::unique_ptr<PeerMemory> connect(Control& control, Stream& stream, std::span<const Tensor> own,
                                             std::string& why_not);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// The first byte of tensor number `index` of a rank, for copies.
  std::byte* at(int rank, size_t index) const { return addresses_[static_cast<size_t>(rank)][index]; }

 private:
  explicit PeerMemory(Device device) : device_(device) {}
  /// Fills the addresses of a rank from its description; "" if it could.
  std::string open(const std::string& description, bool own, std::span<const Tensor> tensors);

  Device device_;
  std::vector<std::vector<std::byte*>> addresses_;  // [rank][tensor]
  std::vector<std::byte*> opened_;                  // allocations of other processes
};

}  // namespace hone
