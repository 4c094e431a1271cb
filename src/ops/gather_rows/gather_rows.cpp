#include "ops/gather_rows/gather_rows.h"

#include "kernels/device_dispatch.h"

namespace hone {

void gather_rows(const Context& context, const GatherRowsArgs& args) {
  dispatch(context, args, &cpu::gather_rows, HONE_CUDA_OP(gather_rows));
}

namespace {

struct GatherRowsNode : Node {
  Tensor rows;

  std::string_view kind() const override { return "gather_rows"; }
  void forward(Tape& tape) override {
    gather_rows(tape.context(), {.x = tape.data(inputs[0]), .rows = rows, .y = tape.data(outputs[0])});
  }
  void backward(Tape&) override { HONE_ASSERT(false, "gather_rows has no gradient"); }
};

}  // namespace

Var gather_rows(Tape& tape, Var x, Tensor rows) {
  HONE_ASSERT(rows.dtype == DType::kI32 && rows.shape.rank() == 1);
  auto node = std::make_unique<GatherRowsNode>();
  node->inputs = {x};
  node->rows = rows;
  const Var y = tape.add_output(*node, {rows.shape[0], tape.shape(x)[1]}, tape.dtype(x));
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
