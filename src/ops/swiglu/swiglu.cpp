#include "ops/swiglu/swiglu.h"

#include "ops/device_dispatch.h"

namespace hone {

void swiglu(const Context& context, const SwigluArgs& args) {
  dispatch(context, args, &cpu::swiglu, HONE_CUDA_OP(swiglu));
}
void swiglu_grad(const Context& context, const SwigluGradArgs& args) {
  dispatch(context, args, &cpu::swiglu_grad, HONE_CUDA_OP(swiglu_grad));
}

namespace {

struct SwigluNode : Node {
  std::string_view kind() const override { return "swiglu"; }

  void forward(Tape& tape) override {
    swiglu(tape.context(), {.gate = tape.data(inputs[0]), .up = tape.data(inputs[1]), .y = tape.data(outputs[0])});
  }

  void backward(Tape& tape) override {
    swiglu_grad(tape.context(), {.gate = tape.data(inputs[0]),
                                 .up = tape.data(inputs[1]),
                                 .dy = tape.grad(outputs[0]),
                                 .dgate = tape.grad_dest(inputs[0]),
                                 .dup = tape.grad_dest(inputs[1])});
  }
};

}  // namespace

Var swiglu(Tape& tape, Var gate, Var up) {
  HONE_ASSERT(gate.id != up.id, "the two gradients need destinations of their own");
  HONE_ASSERT(tape.shape(gate) == tape.shape(up) && tape.dtype(gate) == tape.dtype(up));
  auto node = std::make_unique<SwigluNode>();
  node->inputs = {gate, up};
  node->saved = {gate, up};
  const Var y = tape.add_output(*node, tape.shape(gate), tape.dtype(gate));
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
