// Copies tensors from and to host memory piece by piece: in place if the tensor is in host memory, else through small
// pinned buffers with overlapped copies. Allows loading and saving of models larger than host memory. Not ordered
// against work queued on streams: synchronize first if necessary.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "core/memory/pinned_chunk.h"
#include "core/stream/transfer.h"
#include "params/parameter.h"

namespace hone {

/// Writes pieces of tensors on one GPU or in host memory; one object per thread.
class PieceWriter {
 public:
  /// `largest`: maximum bytes of a piece.
  explicit PieceWriter(size_t largest) : largest_(largest) {}

  /// Returns the memory into which elements [first, first + count) of `tensor` are to be written. It may be written
  /// until the next call, and read until the one after that.
  std::byte* open(const Tensor& tensor, int64_t first, int64_t count);
  /// Waits until every piece has been copied to its tensor.
  void finish();

 private:
  void commit();

  size_t largest_;
  Device device_;                    // the GPU, from the first of its tensors on
  std::vector<PinnedChunk> chunks_;  // double buffering: one is filled while the other is copied
  size_t current_ = 0;
  std::byte* destination_ = nullptr;  // where the piece that is open and not committed goes
  size_t bytes_ = 0;
};

/// Reads elements in order; reads the next piece while one is used.
class PieceReader {
 public:
  using Use = std::function<void(const std::byte* elements, int64_t count)>;

  void read(const Tensor& tensor, int64_t first, int64_t count, const Use& use);

 private:
  std::vector<PinnedChunk> chunks_;
};

/// Returns all elements of a tensor.
template <class T>
std::vector<T> host_values(const Tensor& tensor) {
  HONE_ASSERT(DTypeOf<T>::value == tensor.dtype);
  std::vector<T> values(static_cast<size_t>(tensor.numel()));
  copy_to_host(values.data(), tensor);
  return values;
}

// StateReader: reads the training state of parameters piece by piece for saving, also if it is sharded over ranks.

/// Parts of a parameter's training state.
enum class StatePart { kValue, kM, kMScales, kV, kVScales, kVRows, kVColumns };

/// A tensor of the state: the global shape and this rank's part.
struct StateTensor {
  Shape shape;  ///< global
  DType dtype = DType::kF32;
  Tensor here;         ///< the elements of `slice` on this rank
  Slice slice;         ///< this rank's elements
  bool exact = false;  ///< kValue is a float32 master, from which the parameter's value is rounded

  bool kept() const { return shape.rank() > 0; }
};

/// kValue: the values that the optimizer steps (the master, if there is one). Not kept if the optimizer does not use
/// it.
StateTensor state_tensor(const Parameter& parameter, StatePart part);
/// Whether ranks have parts of it; otherwise every rank has all of it.
bool is_sharded(const Parameter& parameter, StatePart part);
/// The slice of it that files get from a rank of those that keep all state among them: what it holds. Of spread experts
/// each block is in one rank's slice, although others may hold it, too.
Slice state_slice(const Parameter& parameter, StatePart part, int rank);

class StateReader {
 public:
  using Use = PieceReader::Use;
  virtual ~StateReader() = default;
  /// Reads elements [first, first + count) of the global tensor, in order.
  virtual void read(const Parameter& parameter, StatePart part, int64_t first, int64_t count, const Use& use) = 0;
};

/// Reads the elements that this rank holds.
class LocalStateReader : public StateReader {
 public:
  void read(const Parameter& parameter, StatePart part, int64_t first, int64_t count, const Use& use) override {
    const StateTensor state = state_tensor(parameter, part);
    if (count > 0) reader_.read(state.here, first - state.slice.begin, count, use);
  }

 private:
  PieceReader reader_;
};

}  // namespace hone
