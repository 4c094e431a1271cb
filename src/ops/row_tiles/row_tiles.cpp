#include "ops/row_tiles/row_tiles.h"

#include <algorithm>
#include <utility>

#include "ops/cast/cast.h"

namespace hone {

namespace {

struct RowTilesNode : Node {
  RowWork work;
  int64_t tile = 0;

  std::string_view kind() const override { return work.kind; }
  OpGroup group() const override { return work.group; }
  double flops(const Tape&) const override { return work.flops; }

  void forward(Tape& tape) override {
    const Tensor x = tape.data(inputs[0]), y = tape.data(outputs[0]);
    for_each_tile(x.shape[0], [&](const RowRange& rows) {
      Tape part(tape, Tape::PartOf::kForward);
      const Var result = work.body(part, part.input(rows.of(x)), rows);
      copy(tape.context(), part.data(result), rows.of(y));
    });
  }

  void backward(Tape& tape) override {
    const Tensor x = tape.data(inputs[0]), dy = tape.grad(outputs[0]);
    const GradDest dx = tape.grad_dest(inputs[0]);
    for_each_tile(x.shape[0], [&](const RowRange& rows) {
      Tape part(tape, Tape::PartOf::kBackward);
      const GradDest of_tile = dx.wanted() ? GradDest{rows.of(dx.dst), dx.beta} : dx;
      const Var result = work.body(part, part.input(rows.of(x), of_tile), rows);
      part.backward(result, rows.of(dy));
    });
  }

 private:
  /// At least once, which clears the gradients of weights without rows.
  template <class Work>
  void for_each_tile(int64_t rows, const Work& of_tile) const {
    int64_t begin = 0;
    do {
      const int64_t count = std::min(tile, rows - begin);
      of_tile(RowRange{begin, count});
      begin += count;
    } while (begin < rows);
  }
};

}  // namespace

Var row_tiles(Tape& tape, Var x, RowWork work, int64_t tile) {
  HONE_ASSERT(tile > 0);
  auto node = std::make_unique<RowTilesNode>();
  node->work = std::move(work);
  node->tile = tile;
  node->inputs = node->saved = {x};
  Shape shape;
  DType dtype;
  {
    Tape part(tape, Tape::PartOf::kBackward);  // computes nothing
    const Tensor all = tape.data(x);
    const Var result = node->work.body(part, part.input(all), {0, all.shape[0]});
    shape = part.shape(result);
    dtype = part.dtype(result);
    node->weights_want_grad = part.requires_grad(result);
  }
  HONE_ASSERT(shape[0] == tape.shape(x)[0]);
  const Var y = tape.add_output(*node, shape, dtype);
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
