// Bytes of tensors from and to host memory, piece by piece: in place where the tensor is in host memory, else through a
// little pinned memory, beside each other. So a model is loaded and saved that is larger than the host's memory.
// Nothing here is ordered against work queued on streams: synchronize first where it matters.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "core/pinned_chunk.h"
#include "core/transfer.h"
#include "params/parameter.h"

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

// StateReader: what training keeps of parameters, read piece by piece to be saved, wherever the pieces are: here, or
// spread over ranks that keep some elements each.

/// What training keeps of a parameter.
enum class StatePart { kValue, kM, kMScales, kV, kVScales, kVRows, kVColumns };

/// A tensor of the state: what all of it is like, and what is here.
struct StateTensor {
  Shape shape;  ///< of all elements
  DType dtype = DType::kF32;
  Tensor here;         ///< the elements of `slice`
  Slice slice;         ///< of this rank
  bool exact = false;  ///< of kValue: a float32 master, which the parameter's value is rounded from

  bool kept() const { return shape.rank() > 0; }
};

/// kValue: the values that the optimizer steps (the master, if there is one). Not kept where the optimizer has no use
/// for it.
StateTensor state_tensor(const Parameter& parameter, StatePart part);
/// The elements of it that a rank has.
Slice state_slice(const Parameter& parameter, StatePart part, int rank);

class StateReader {
 public:
  using Use = PieceReader::Use;
  virtual ~StateReader() = default;
  /// Elements [first, first + count) of all, in order.
  virtual void read(const Parameter& parameter, StatePart part, int64_t first, int64_t count, const Use& use) = 0;
};

/// Where everything is here.
class WholeStateReader : public StateReader {
 public:
  void read(const Parameter& parameter, StatePart part, int64_t first, int64_t count, const Use& use) override {
    reader_.read(state_tensor(parameter, part).here, first, count, use);
  }

 private:
  PieceReader reader_;
};

}  // namespace hone
