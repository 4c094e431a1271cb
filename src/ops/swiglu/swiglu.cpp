#include "ops/swiglu/swiglu.h"

#include "kernels/device_dispatch.h"

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
  RecomputeLevel recomputed_from() const override { return RecomputeLevel::kActivations; }

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

/// A half of gate_up [T, 2I] as a tensor [T, I] with rows 2I apart.
Tensor half_of(Tensor gate_up, int64_t which) {
  if (!gate_up.defined()) return gate_up;
  gate_up.shape = {gate_up.shape[0], gate_up.shape[1] / 2};
  gate_up.data += static_cast<size_t>(which * gate_up.shape[1]) * size_of(gate_up.dtype);
  return gate_up;
}

struct FusedSwigluNode : Node {
  std::string_view kind() const override { return "swiglu"; }
  RecomputeLevel recomputed_from() const override { return RecomputeLevel::kActivations; }

  void forward(Tape& tape) override {
    const Tensor gate_up = tape.data(inputs[0]);
    swiglu(tape.context(), {.gate = half_of(gate_up, 0),
                            .up = half_of(gate_up, 1),
                            .y = tape.data(outputs[0]),
                            .pitch = gate_up.shape[1]});
  }

  void backward(Tape& tape) override {
    const Tensor gate_up = tape.data(inputs[0]);
    const GradDest dest = tape.grad_dest(inputs[0]);
    swiglu_grad(tape.context(), {.gate = half_of(gate_up, 0),
                                 .up = half_of(gate_up, 1),
                                 .dy = tape.grad(outputs[0]),
                                 .dgate = {half_of(dest.dst, 0), dest.beta},
                                 .dup = {half_of(dest.dst, 1), dest.beta},
                                 .pitch = gate_up.shape[1]});
  }
};

}  // namespace

Var swiglu(Tape& tape, Var gate_up) {
  const Shape& shape = tape.shape(gate_up);
  HONE_ASSERT(shape.rank() == 2 && shape[1] % 2 == 0);
  auto node = std::make_unique<FusedSwigluNode>();
  node->inputs = {gate_up};
  node->saved = {gate_up};
  const Var y = tape.add_output(*node, {shape[0], shape[1] / 2}, tape.dtype(gate_up));
  tape.record(std::move(node));
  return y;
}

Var swiglu(Tape& tape, Var gate, Var up) {
  HONE_ASSERT(gate.id != up.id, "the two gradients need different destinations");
  HONE_ASSERT(tape.shape(gate) == tape.shape(up) && tape.dtype(gate) == tape.dtype(up));
  auto node = std::make_unique<SwigluNode>();
  node->inputs = {gate, up};
  node->saved = {gate, up};
  const Var y = tape.add_output(*node, tape.shape(gate), tape.dtype(gate));
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
