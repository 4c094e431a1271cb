// The memory that the pages of all columns take, so that a small file cannot take much.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "data/readers/parquet/bytes.h"

namespace hone::parquet {

/// Counts the bytes of all buffers against a limit.
class PageMemory {
 public:
  explicit PageMemory(uint64_t most) : most_(most) {}

  /// Throws ParquetFault for more than the limit.
  void take(uint64_t bytes) {
    if (bytes > most_ - used_) {
      throw ParquetFault(fmt::format("its pages need {} bytes at once, more than a file of its size may take ({})",
                                     used_ + bytes, most_),
                         kWithSmallerPages);
    }
    used_ += bytes;
  }
  void give(uint64_t bytes) { used_ -= bytes; }

 private:
  uint64_t most_, used_ = 0;
};

/// What one owner has of the memory.
class MemoryShare {
 public:
  explicit MemoryShare(PageMemory& memory) : memory_(memory) {}
  ~MemoryShare() { memory_.give(bytes_); }
  MemoryShare(const MemoryShare&) = delete;
  MemoryShare& operator=(const MemoryShare&) = delete;

  uint64_t bytes() const { return bytes_; }
  /// Throws ParquetFault for more than there is; the share is then 0.
  void resize(uint64_t bytes) {
    memory_.give(std::exchange(bytes_, 0));
    memory_.take(bytes);
    bytes_ = bytes;
  }

 private:
  PageMemory& memory_;
  uint64_t bytes_ = 0;
};

/// A buffer that grows and is filled again and again.
class PageBuffer {
 public:
  explicit PageBuffer(PageMemory& memory) : share_(memory) {}

  /// Memory of at least `size` bytes; what it held is lost. Untouched memory takes none of the machine's.
  uint8_t* at_least(uint64_t size) {
    if (size > share_.bytes()) {
      bytes_.reset();
      share_.resize(size);
      bytes_ = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(size));
    }
    return bytes_.get();
  }

 private:
  MemoryShare share_;
  std::unique_ptr<uint8_t[]> bytes_;
};

}  // namespace hone::parquet
