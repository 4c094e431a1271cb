#include "ops/mlp_activation/mlp_activation.h"

#include "kernels/device_dispatch.h"

namespace hone {

void mlp_activation(const Context& context, const MlpActivationArgs& args) {
  HONE_ASSERT(args.function.kind != MlpActivation::Kind::kClampedSwiglu && args.function.gated() == args.up.defined());
  dispatch(context, args, &cpu::mlp_activation, HONE_CUDA_OP(mlp_activation));
}
void mlp_activation_grad(const Context& context, const MlpActivationGradArgs& args) {
  HONE_ASSERT(args.function.gated() == args.up.defined() && (args.function.gated() || !args.dup.wanted()));
  dispatch(context, args, &cpu::mlp_activation_grad, HONE_CUDA_OP(mlp_activation_grad));
}

namespace {

struct ActivationNode : Node {
  MlpActivation function;

  std::string_view kind() const override { return function.name(); }
  RecomputeLevel recomputed_from() const override { return RecomputeLevel::kActivations; }
};

struct SeparateNode : ActivationNode {
  void forward(Tape& tape) override {
    mlp_activation(
        tape.context(),
        {.function = function, .gate = tape.data(inputs[0]), .up = tape.data(inputs[1]), .y = tape.data(outputs[0])});
  }

  void backward(Tape& tape) override {
    mlp_activation_grad(tape.context(), {.function = function,
                                         .gate = tape.data(inputs[0]),
                                         .up = tape.data(inputs[1]),
                                         .dy = tape.grad(outputs[0]),
                                         .dgate = tape.grad_dest(inputs[0]),
                                         .dup = tape.grad_dest(inputs[1])});
  }
};

struct JoinedNode : ActivationNode {
  /// Gate (0) or up (1) of h [T, C] as a tensor [T, I] with rows C apart; undefined if there is none.
  Tensor part_of(Tensor h, int64_t which) const {
    if (!h.defined()) return h;
    if (which == 1 && !function.gated()) return {};
    h.shape = {h.shape[0], function.width(h.shape[1])};
    h.data += static_cast<size_t>(which * h.shape[1]) * size_of(h.dtype);
    return h;
  }
  /// Rows without a second half are as they would be alone.
  int64_t pitch_of(const Tensor& h) const { return function.gated() ? h.shape[1] : 0; }

  void forward(Tape& tape) override {
    const Tensor h = tape.data(inputs[0]);
    mlp_activation(tape.context(), {.function = function,
                                    .gate = part_of(h, 0),
                                    .up = part_of(h, 1),
                                    .y = tape.data(outputs[0]),
                                    .pitch = pitch_of(h)});
  }

  void backward(Tape& tape) override {
    const Tensor h = tape.data(inputs[0]);
    const GradDest dest = tape.grad_dest(inputs[0]);
    mlp_activation_grad(tape.context(), {.function = function,
                                         .gate = part_of(h, 0),
                                         .up = part_of(h, 1),
                                         .dy = tape.grad(outputs[0]),
                                         .dgate = {part_of(dest.dst, 0), dest.beta},
                                         .dup = {part_of(dest.dst, 1), dest.beta},
                                         .pitch = pitch_of(h)});
  }
};

}  // namespace

Var mlp_activation(Tape& tape, const MlpActivation& function, Var h) {
  const Shape& shape = tape.shape(h);
  HONE_ASSERT(shape.rank() == 2 && function.columns(function.width(shape[1])) == shape[1]);
  auto node = std::make_unique<JoinedNode>();
  node->function = function;
  node->inputs = {h};
  node->saved = {h};
  const Var y = tape.add_output(*node, {shape[0], function.width(shape[1])}, tape.dtype(h));
  tape.record(std::move(node));
  return y;
}

Var mlp_activation(Tape& tape, const MlpActivation& function, Var gate, Var up) {
  HONE_ASSERT(function.gated());
  HONE_ASSERT(gate.id != up.id, "the two gradients need different destinations");
  HONE_ASSERT(tape.shape(gate) == tape.shape(up) && tape.dtype(gate) == tape.dtype(up));
  auto node = std::make_unique<SeparateNode>();
  node->function = function;
  node->inputs = {gate, up};
  node->saved = {gate, up};
  const Var y = tape.add_output(*node, tape.shape(gate), tape.dtype(gate));
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
