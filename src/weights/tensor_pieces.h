// Bytes of tensors from and to host memory, piece by piece: in place where the tensor is in host memory, else through a
// little pinned memory, beside each other. So a model is loaded and saved that is larger than the host's memory.
// Nothing here is ordered against work queued on streams: synchronize first where it matters.
#pragma once

#include <functional>
#include <vector>

#include "core/pinned_chunk.h"
#include "core/transfer.h"

namespace hone {

/// Fills pieces of tensors on one device and in host memory; threads have one each.
class PieceWriter {
 public:
  /// No piece will have more than `largest` bytes.
  PieceWriter(Device device, size_t largest) : device_(device), largest_(largest) {}

  /// Where the elements [first, first + count) of `tensor` are to be written. The bytes handed out by one call may be
  /// written until the next call and read until the one after it.
  std::byte* open(const Tensor& tensor, int64_t first, int64_t count);
  /// Waits until every piece is in its tensor.
  void finish();

 private:
  void commit();

  Device device_;
  size_t largest_;
  std::vector<PinnedChunk> chunks_;  // take turns: one is filled while the other is copied
  size_t current_ = 0;
  std::byte* destination_ = nullptr;  // of what has been opened and not committed
  size_t bytes_ = 0;
};

/// Reads elements in order, the next piece on its way while one is used.
class PieceReader {
 public:
  using Use = std::function<void(const std::byte* elements, int64_t count)>;

  void read(const Tensor& tensor, int64_t first, int64_t count, const Use& use);

 private:
  std::vector<PinnedChunk> chunks_;
};

/// All elements of a tensor.
template <class T>
std::vector<T> host_values(const Tensor& tensor) {
  HONE_ASSERT(DTypeOf<T>::value == tensor.dtype);
  std::vector<T> values(static_cast<size_t>(tensor.numel()));
  copy_to_host(values.data(), tensor);
  return values;
}

}  // namespace hone
