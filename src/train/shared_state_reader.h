// SharedStateReader gathers sharded parameters and their state on the first rank for saving. No rank ever holds a full
// tensor: pieces are gathered one at a time.
#pragma once

#include "core/arena.h"
#include "core/buffer.h"
#include "dist/communicator.h"
#include "params/parameter_store.h"
#include "weights/tensor_pieces.h"

namespace hone {

class SharedStateReader : public StateReader {
 public:
  /// Constructed on every rank, with its shard group's communicator: each group gathers what the first rank asks for,
  /// which is in the first group. All arguments must outlive it.
  SharedStateReader(Communicator& communicator, Stream& stream, ParameterStore& store);

  /// On the first rank, while the others are in serve(). finish() must be called at the end.
  void read(const Parameter& parameter, StatePart part, int64_t first, int64_t count, const Use& use) override;
  void finish();
  /// On the other ranks: serves requests of the first rank until finish().
  void serve();

 private:
  /// Request for a piece of a tensor.
  struct Request {
    uint32_t parameter = 0;  ///< Parameter::index()
    StatePart part = StatePart::kValue;
    int64_t first = 0, count = 0;
  };
  /// Gathers the piece into the staging memory of all ranks. Blocks.
  Tensor gather(const Request& request);
  const Parameter& at(uint32_t index) const;

  Communicator& communicator_;
  Stream& stream_;
  ParameterStore& store_;
  Arena scratch_;
  Buffer staging_;
  WholeStateReader own_;
  PieceReader staged_;
};

}  // namespace hone
