#include "ops/dora/dora.h"

#include "kernels/device_dispatch.h"
#include "ops/unpack_weights/unpacked_weight.h"

namespace hone {

void dora_norm(const Context& context, const DoraNormArgs& args) {
  dispatch(context, args, &cpu::dora_norm, HONE_CUDA_OP(dora_norm));
}
void dora_scale(const Context& context, const DoraScaleArgs& args) {
  dispatch(context, args, &cpu::dora_scale, HONE_CUDA_OP(dora_scale));
}
void dora_scale_grad(const Context& context, const DoraScaleGradArgs& args) {
  dispatch(context, args, &cpu::dora_scale_grad, &cuda::dora_scale_grad);
}

namespace {

struct DoraNormNode : Node {
  Weight* w = nullptr;
  const Adapter* adapter = nullptr;

  std::string_view kind() const override { return "dora_norm"; }

  void forward(Tape& tape) override {
    const UnpackedWeight weight(tape.context(), *w);
    dora_norm(tape.context(), {.w = weight.view,
                               .shape = w->shape(),
                               .lora_a = adapter->lora_a->view().dense(),
                               .lora_b = adapter->lora_b->view().dense(),
                               .scaling = adapter->scaling,
                               .norms = tape.data(outputs[0])});
  }

  void backward(Tape&) override {}
  bool backward_reads_weights() const override { return false; }
};

/// Inputs: the scaled sum and the norms.
struct DoraScaleNode : Node {
  Weight* magnitude = nullptr;
  Weight* bias = nullptr;

  std::string_view kind() const override { return "dora_scale"; }

  void forward(Tape& tape) override {
    dora_scale(tape.context(), {.x = tape.data(inputs[0]),
                                .norms = tape.data(inputs[1]),
                                .magnitude = magnitude->view().dense(),
                                .bias = bias != nullptr ? bias->view().dense() : Tensor{},
                                .y = tape.data(outputs[0])});
  }

  void backward(Tape& tape) override {
    DoraScaleGradArgs args{.dy = tape.grad(outputs[0]),
                           .norms = tape.data(inputs[1]),
                           .magnitude = magnitude->view().dense(),
                           .dx = tape.grad_dest(inputs[0]),
                           .dmagnitude = magnitude->grad(),
                           .dbias = bias != nullptr ? bias->grad() : GradDest{}};
    if (args.dmagnitude.wanted()) args.x = tape.data(inputs[0]);
    dora_scale_grad(tape.context(), args);
  }
};

Var record_norm(Tape& tape, Weight& w, const Adapter& adapter) {
  auto node = std::make_unique<DoraNormNode>();
  node->w = &w;
  node->adapter = &adapter;
  const Var norms = tape.add_output(*node, {w.shape()[0]}, DType::kF32, Keep::kAlways);
  tape.record(std::move(node));
  return norms;
}

}  // namespace

Var dora_linear(Tape& tape, Var x, Weight& w, Weight* bias, const Adapter& adapter, const LoraDropoutContext& rows) {
  HONE_ASSERT(adapter.magnitude != nullptr && adapter.magnitude->shape() == Shape({w.shape()[0]}));
  const Var sum = linear(tape, x, w, nullptr, &adapter, rows);
  const Var norms = record_norm(tape, w, adapter);
  auto node = std::make_unique<DoraScaleNode>();
  node->magnitude = adapter.magnitude;
  node->bias = bias;
  node->inputs = {sum, norms};
  node->saved = {norms};
  if (adapter.magnitude->wants_grad()) node->saved.push_back(sum);
  node->weights_want_grad = adapter.magnitude->wants_grad() || (bias != nullptr && bias->wants_grad());
  const Var y = tape.add_output(*node, tape.shape(sum), tape.dtype(sum));
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
