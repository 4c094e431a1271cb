#include "ops/soft_cap/soft_cap.h"

#include "kernels/device_dispatch.h"

namespace hone {

void soft_cap(const Context& context, const SoftCapArgs& args) {
  dispatch(context, args, &cpu::soft_cap, HONE_CUDA_OP(soft_cap));
}

namespace {

struct SoftCapNode : Node {
  float cap = 0;

  std::string_view kind() const override { return "soft_cap"; }

  void forward(Tape& tape) override {
    soft_cap(tape.context(), {.x = tape.data(inputs[0]), .y = tape.data(outputs[0]), .cap = cap});
  }

  void backward(Tape&) override { HONE_ASSERT(false, "training has the cap in the head's loss"); }
};

}  // namespace

Var soft_cap(Tape& tape, Var x, float cap) {
  if (cap == 0) return x;
  auto node = std::make_unique<SoftCapNode>();
  node->cap = cap;
  node->inputs = {x};
  const Var y = tape.add_output(*node, tape.shape(x), tape.dtype(x));
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
