// SharedStateReader: reads what ranks keep of parameters in parts, for the first rank to save. No tensor is ever whole
// on one of them: pieces are gathered one at a time.
#pragma once

#include "core/arena.h"
#include "core/buffer.h"
#include "dist/communicator.h"
#include "params/parameter_store.h"
#include "weights/tensor_pieces.h"

namespace hone {

class SharedStateReader : public StateReader {
 public:
  /// On every rank; all outlive it.
  SharedStateReader(Communicator& communicator, Stream& stream, ParameterStore& store);

  /// On the first rank, while the others serve(). Ends with finish().
  void read(const Parameter& parameter, StatePart part, int64_t first, int64_t count, const Use& use) override;
  void finish();
  /// On the others: hands over what the first rank asks for, until it has finished.
  void serve();

 private:
  /// A piece of a tensor.
  struct Request {
    uint32_t parameter = 0;  ///< Parameter::index()
    StatePart part = StatePart::kValue;
    int64_t first = 0, count = 0;
  };
  /// Gathers the piece in the staging memory of all ranks. Waits.
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
