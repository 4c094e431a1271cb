// Arena: a stack of tensors in one allocation whose size a dry pass measures.
#pragma once

#include <optional>
#include <string>

#include "core/memory/buffer.h"

namespace hone {

/// Bump allocation with marks. Until reserve() is called the arena is dry: it returns addresses that must not be
/// accessed, and records its high-water mark. A stack of smaller tensors is never higher than one of larger tensors, so
/// a dry pass at the largest sizes of a run bounds every step of it.
class Arena {
 public:
  static constexpr size_t kAlignment = 256;

  Arena(Device device, std::string name) : device_(device), name_(std::move(name)) {}

  bool dry() const { return dry_; }
  /// Takes uninitialised memory for a tensor from the top of the stack.
  Tensor take(Shape shape, DType dtype);

  size_t mark() const { return top_; }
  /// The bytes of all tensors taken since `mark`.
  Tensor taken_since(size_t mark) const;
  /// Frees all tensors taken since `mark`.
  void release(size_t mark);

  /// Maximum number of bytes in use since the last begin_dry().
  size_t high_water() const { return high_water_; }
  /// Frees the memory and records sizes again.
  void begin_dry();
  /// Allocates `bytes`; take() then returns real memory.
  void reserve(size_t bytes);
  size_t capacity() const { return buffer_.size(); }

 private:
  std::byte* base() const;

  Device device_;
  std::string name_;
  Buffer buffer_;
  bool dry_ = true;
  size_t top_ = 0, high_water_ = 0;
};

/// Releases an arena at the end of a scope to its mark at construction.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

  Tensor take(Shape shape, DType dtype) { return arena_.take(shape, dtype); }

 private:
  Arena& arena_;
  size_t mark_;
};

}  // namespace hone
