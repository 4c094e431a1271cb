#include "ops/clamp/clamp.h"

#include "kernels/device_dispatch.h"

namespace hone {

void clamp(const Context& context, const ClampArgs& args) { dispatch(context, args, &cpu::clamp, HONE_CUDA_OP(clamp)); }
void clamp_grad(const Context& context, const ClampGradArgs& args) {
  dispatch(context, args, &cpu::clamp_grad, HONE_CUDA_OP(clamp_grad));
}

namespace {

struct ClampNode : Node {
  float limit = 0;

  std::string_view kind() const override { return "clamp"; }

  void forward(Tape& tape) override {
    clamp(tape.context(), {.x = tape.data(inputs[0]), .y = tape.data(outputs[0]), .limit = limit});
  }

  void backward(Tape& tape) override {
    const GradDest dx = tape.grad_dest(inputs[0]);
    if (!dx.wanted()) return;
    clamp_grad(tape.context(), {.x = tape.data(inputs[0]), .dy = tape.grad(outputs[0]), .dx = dx, .limit = limit});
  }
};

}  // namespace

Var clamp(Tape& tape, Var x, float limit) {
  HONE_ASSERT(limit > 0.0f);
  auto node = std::make_unique<ClampNode>();
  node->limit = limit;
  node->inputs = {x};
  node->saved = {x};
  const Var y = tape.add_output(*node, tape.shape(x), tape.dtype(x));
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
