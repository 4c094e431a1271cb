// Mapped memory: memory of a device apart from its addresses. A range of addresses is put together from pieces of
// several memories, and a piece can be in several ranges: a tensor can consist of a part that stays and of parts whose
// memory other tensors use in turn. Other processes of the host can map the memory, too.
// On a GPU this is CUDA's virtual memory management, on a CPU memory of memfd_create(2).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/base/device.h"
#include "core/files/descriptor.h"

namespace hone {

/// Sizes and offsets below are multiples of this on the device: 2 MiB on a GPU, a page on a CPU. 0 if the device cannot
/// map memory, or not share it.
size_t mapping_granularity(Device device);

/// Memory without addresses, in pieces: CUDA maps whole pieces only. Freed when it and all ranges that map it are gone.
class MappableMemory {
 public:
  MappableMemory() = default;
  /// Pieces of these sizes, filled with zeros. Throws Error(kDeviceFailed) with the size if the device has too little
  /// memory.
  MappableMemory(Device device, const std::vector<size_t>& pieces);
  /// A piece of another process, as it shares it, is added to the end. Returns the reason if this process cannot map
  /// it.
  std::string import(const Descriptor& shared, size_t bytes);
  /// Memory to which import() adds pieces.
  explicit MappableMemory(Device device) : device_(device) {}
  ~MappableMemory();
  MappableMemory(MappableMemory&& other) noexcept { swap(other); }
  MappableMemory& operator=(MappableMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  size_t size() const { return size_; }
  /// The sizes of its pieces.
  std::vector<size_t> pieces() const;
  /// What another process imports, for each piece.
  std::vector<Descriptor> share() const;

 private:
  friend class AddressRange;
  void swap(MappableMemory& other) noexcept;

  struct Piece {
    size_t begin = 0, bytes = 0;
    unsigned long long handle = 0;  // a GPU's memory
    Descriptor file = {};           // a CPU's memory
    bool imported = false;          // the process that made it says on which NUMA nodes its pages are
  };
  Device device_;
  size_t size_ = 0;
  std::vector<Piece> pieces_;
};

/// Consecutive addresses, to which memory is mapped piece by piece. Unmaps it on destruction, when no work uses it.
class AddressRange {
 public:
  AddressRange() = default;
  AddressRange(Device device, size_t bytes);
  ~AddressRange();
  AddressRange(AddressRange&& other) noexcept { swap(other); }
  AddressRange& operator=(AddressRange&& other) noexcept {
    swap(other);
    return *this;
  }

  std::byte* data() const { return data_; }
  /// Maps bytes [offset, offset + bytes) of `memory`, which are whole pieces, to the addresses from data() + at on.
  /// `memory` is of this device or of one that this device can access, else the result is the reason why it cannot.
  std::string map(size_t at, const MappableMemory& memory, size_t offset, size_t bytes);

 private:
  void swap(AddressRange& other) noexcept;

  Device device_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  struct Mapping {
    size_t at, bytes;
  };
  std::vector<Mapping> mapped_;
};

}  // namespace hone
