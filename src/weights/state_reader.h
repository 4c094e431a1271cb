// StateReader: what training keeps of parameters, read piece by piece to be saved, wherever the pieces are: here, or
// spread over ranks that keep some elements each.
#pragma once

#include <optional>

#include "params/parameter.h"
#include "weights/tensor_pieces.h"

namespace hone {

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
