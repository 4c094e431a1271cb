#include "ops/sigmoid_gate/sigmoid_gate.h"

#include "kernels/device_dispatch.h"

namespace hone {

void sigmoid_gate(const Context& context, const SigmoidGateArgs& args) {
  dispatch(context, args, &cpu::sigmoid_gate, HONE_CUDA_OP(sigmoid_gate));
}
void sigmoid_gate_grad(const Context& context, const SigmoidGateGradArgs& args) {
  dispatch(context, args, &cpu::sigmoid_gate_grad, HONE_CUDA_OP(sigmoid_gate_grad));
}

namespace {

struct SigmoidGateNode : Node {
  std::string_view kind() const override { return "sigmoid_gate"; }

  void forward(Tape& tape) override {
    sigmoid_gate(tape.context(), {.gate = tape.data(inputs[0]), .x = tape.data(inputs[1]), .y = tape.data(outputs[0])});
  }

  void backward(Tape& tape) override {
    sigmoid_gate_grad(tape.context(), {.gate = tape.data(inputs[0]),
                                       .x = tape.data(inputs[1]),
                                       .dy = tape.grad(outputs[0]),
                                       .dgate = tape.grad_dest(inputs[0]),
                                       .dx = tape.grad_dest(inputs[1])});
  }
};

}  // namespace

Var sigmoid_gate(Tape& tape, Var gate, Var x) {
  HONE_ASSERT(gate.id != x.id, "the two gradients need different destinations");
  const Shape &rows = tape.shape(x), &gates = tape.shape(gate);
  HONE_ASSERT(rows.rank() == 2 && (gates == rows || gates == (Shape{rows[0], 1})));
  HONE_ASSERT(tape.dtype(gate) == tape.dtype(x));
  auto node = std::make_unique<SigmoidGateNode>();
  node->inputs = {gate, x};
  node->saved = {gate, x};
  const Var y = tape.add_output(*node, rows, tape.dtype(x));
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
