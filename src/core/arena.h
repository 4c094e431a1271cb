// Arena: a stack of tensors over one allocation whose size a dry pass has measured.
#pragma once

#include <optional>
#include <string>

#include "core/buffer.h"

namespace hone {

/// Bump allocation with marks. Until reserve() has been called the arena is dry: it hands out addresses that nothing
/// may touch and records its high-water mark. Since a stack of smaller tensors never rises above a stack of larger
/// ones, a dry pass at the largest sizes of a run bounds every step of it.
class Arena {
 public:
  static constexpr size_t kAlignment = 256;

  Arena(Device device, std::string name) : device_(device), name_(std::move(name)) {}

  bool dry() const { return dry_; }
  /// Takes uninitialised memory for a tensor from the top of the stack.
  Tensor take(Shape shape, DType dtype);

  size_t mark() const { return top_; }
  /// The bytes of everything taken since `mark`.
  Tensor taken_since(size_t mark) const;
  /// Frees everything taken since `mark`.
  void release(size_t mark);

  /// Most bytes in use at once since the last begin_dry().
  size_t high_water() const { return high_water_; }
  /// Frees the memory and records sizes again.
  void begin_dry();
  /// Allocates `bytes`; from here on take() hands out real memory.
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

/// Releases an arena to where it stood at construction.
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
