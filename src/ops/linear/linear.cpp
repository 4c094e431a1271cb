#include "ops/linear/linear.h"

#include "kernels/device_dispatch.h"
#include "kernels/weight_gradient/weight_gradient.h"
#include "ops/fp8_operand/fp8_operand.h"
#include "ops/unpack_weights/unpacked_weight.h"

namespace hone {

namespace {

/// Only frozen weights are anything but dense.
void check_weight(const Context& context, const WeightView& w, DType activations, Fp8Recipe fp8) {
  if (fp8 != Fp8Recipe::kOff) {
    HONE_ASSERT(activations == DType::kBF16);
    HONE_ASSERT(w.is_dense() || w.format->read_in_place(weight_product_of(fp8), context.device()));
    return;
  }
  if (w.is_dense() || (w.packed && context.device().kind == DeviceKind::kCpu)) return;
  HONE_ASSERT(w.format->read_in_place(WeightProduct::kLinear, context.device()) && activations == DType::kBF16);
  HONE_ASSERT(w.payload.dtype == DType::kBF16 && w.format->fits(w.payload.shape));
}

}  // namespace

void linear(const Context& context, const LinearArgs& args) {
  check_weight(context, args.w, args.x.dtype, args.fp8);
  dispatch(context, args, &cpu::linear, &cuda::linear);
}
void linear_grad(const Context& context, const LinearGradArgs& args) {
  check_weight(context, args.w, args.dy.dtype, args.fp8.recipe);
  HONE_ASSERT(args.w.is_dense() || !args.dw.wanted());
  HONE_ASSERT(!args.lora_a.defined() || !args.dx.wanted() || (args.dxa.wanted() && args.dxa.beta == 0.0f));
  dispatch(context, args, &cpu::linear_grad, &cuda::linear_grad);
}
void lora_down(const Context& context, const LoraDownArgs& args) {
  dispatch(context, args, &cpu::lora_down, &cuda::lora_down);
}
void lora_down_grad(const Context& context, const LoraDownGradArgs& args) {
  dispatch(context, args, &cpu::lora_down_grad, &cuda::lora_down_grad);
}

namespace {

struct LoraDownNode : Node {
  Weight* lora_a = nullptr;
  LoraDropout dropout;
  bool gives_dx = true;  ///< else the node that reads xa does

  std::string_view kind() const override { return "lora_down"; }
  OpGroup group() const override { return OpGroup::kDense; }
  double flops(const Tape&) const override { return 0; }  // an adapter's

  void forward(Tape& tape) override {
    lora_down(
        tape.context(),
        {.x = tape.data(inputs[0]), .lora_a = lora_a->view().dense(), .dropout = dropout, .xa = tape.data(outputs[0])});
  }

  void backward(Tape& tape) override {
    LoraDownGradArgs args{.dxa = tape.grad(outputs[0]),
                          .lora_a = lora_a->view().dense(),
                          .dropout = dropout,
                          .dx = gives_dx ? tape.grad_dest(inputs[0]) : GradDest{},
                          .dlora_a = lora_a->grad()};
    if (!args.dx.wanted() && !args.dlora_a.wanted()) return;
    if (args.dlora_a.wanted()) args.x = tape.data(inputs[0]);
    lora_down_grad(tape.context(), args);
  }
};

/// Inputs: x and, with an adapter, xa.
struct LinearNode : Node {
  Weight* w = nullptr;
  Weight* bias = nullptr;
  Weight* lora_a = nullptr;
  Weight* lora_b = nullptr;
  LoraDropout dropout;
  float scaling = 0;

  std::string_view kind() const override { return "linear"; }
  OpGroup group() const override { return OpGroup::kDense; }
  double flops(const Tape& tape) const override {
    return 2.0 * static_cast<double>(tape.shape(inputs[0])[0] * w->shape().numel());
  }

  void forward(Tape& tape) override {
    const Fp8Recipe fp8 = w->fp8().recipe;
    const bool in_panels = fp8 == Fp8Recipe::kOff && tape.context().device().kind == DeviceKind::kCpu &&
                           tape.shape(inputs[0])[0] <= kMostRowsOfPanels;
    const UnpackedWeight weight(tape.context(), *w, weight_product_of(fp8), in_panels);
    LinearArgs args{
        .x = tape.data(inputs[0]), .w = weight.view, .scaling = scaling, .fp8 = fp8, .y = tape.data(outputs[0])};
    if (bias != nullptr) args.bias = bias->view().dense();
    if (lora_b != nullptr) {
      args.xa = tape.data(inputs[1]);
      args.lora_b = lora_b->view().dense();
    }
    linear(tape.context(), args);
  }

  void backward(Tape& tape) override {
    const Tensor dy = tape.grad(outputs[0]);
    const NarrowGradient dw(tape.context(), *w, dy.dtype == DType::kBF16);
    const UnpackedWeight weight(tape.context(), *w, weight_product_of(w->fp8().recipe));
    LinearGradArgs args{.dy = dy,
                        .w = weight.view,
                        .scaling = scaling,
                        .fp8 = w->fp8(),
                        .dx = tape.grad_dest(inputs[0]),
                        .dw = dw.dest,
                        .dbias = bias != nullptr ? bias->grad() : GradDest{},
                        .dxa = {},
                        .dlora_b = {}};
    if (args.dw.wanted()) args.x = tape.data(inputs[0]);
    if (lora_b != nullptr) {
      args.dxa = tape.grad_dest(inputs[1]);
      args.dlora_b = lora_b->grad();
      args.lora_b = lora_b->view().dense();
      args.lora_a = lora_a->view().dense();
      args.dropout = dropout;
      if (args.dlora_b.wanted()) args.xa = tape.data(inputs[1]);
    }
    linear_grad(tape.context(), args);
    dw.store();
  }
};

LoraDropout dropout_of(const Tape& tape, const Adapter& adapter, const LoraDropoutContext& rows) {
  if (!tape.training()) return {};
  return {adapter.dropout, adapter.stream_id, rows};
}

Var record_lora_down(Tape& tape, Var x, const Adapter& adapter, const LoraDropoutContext& rows, bool gives_dx) {
  HONE_ASSERT(adapter.lora_a->shape().rank() == 2 && adapter.lora_a->shape()[1] == tape.shape(x)[1]);
  HONE_ASSERT(adapter.dropout >= 0.0f && adapter.dropout < 1.0f);
  auto node = std::make_unique<LoraDownNode>();
  node->lora_a = adapter.lora_a;
  node->dropout = dropout_of(tape, adapter, rows);
  node->gives_dx = gives_dx;
  node->inputs = {x};
  node->weights_want_grad = adapter.lora_a->wants_grad();
  if (adapter.lora_a->wants_grad()) node->saved = {x};
  const Var xa = tape.add_output(*node, {tape.shape(x)[0], adapter.lora_a->shape()[0]}, DType::kF32);
  tape.record(std::move(node));
  return xa;
}

}  // namespace

Var lora_down(Tape& tape, Var x, const Adapter& adapter, const LoraDropoutContext& rows) {
  return record_lora_down(tape, x, adapter, rows, true);
}

Var linear(Tape& tape, Var x, Weight& w, Weight* bias, const Adapter* adapter, const LoraDropoutContext& dropout) {
  const int64_t out = w.shape()[0];
  HONE_ASSERT(tape.shape(x).rank() == 2 && w.shape() == Shape({out, tape.shape(x)[1]}));
  HONE_ASSERT(bias == nullptr || bias->shape() == Shape({out}));
  auto node = std::make_unique<LinearNode>();
  node->w = &w;
  node->bias = bias;
  node->inputs = {x};
  node->weights_want_grad = w.wants_grad() || (bias != nullptr && bias->wants_grad());
  if (w.wants_grad()) node->saved.push_back(x);
  if (adapter != nullptr) {
    HONE_ASSERT(adapter->lora_b->shape() == Shape({out, adapter->lora_a->shape()[0]}));
    node->lora_a = adapter->lora_a;
    node->lora_b = adapter->lora_b;
    node->dropout = dropout_of(tape, *adapter, dropout);
    node->scaling = adapter->scaling;
    node->inputs.push_back(record_lora_down(tape, x, *adapter, dropout, false));
    node->weights_want_grad |= adapter->lora_b->wants_grad();
    if (adapter->lora_b->wants_grad()) node->saved.push_back(node->inputs[1]);
  }
  const Var y = tape.add_output(*node, {tape.shape(x)[0], out}, tape.dtype(x));
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
