#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include "kernels/device_dispatch.h"
#include "kernels/weight_gradient/weight_gradient.h"
#include "ops/add/add.h"
#include "ops/cast/cast.h"
#include "ops/linear/linear.h"

namespace hone {

void linear_cross_entropy(const Context& context, const LinearCrossEntropyArgs& args) {
  HONE_ASSERT(args.label_smoothing >= 0.0f && args.label_smoothing < 1.0f);
  if (args.dx.defined()) fill_zero(context, args.dx);
  if (args.dxa.defined()) fill_zero(context, args.dxa);
  dispatch(context, args, &cpu::linear_cross_entropy, &cuda::linear_cross_entropy);
}

namespace {

/// Inputs: x and, with an adapter, xa. Outputs: the wanted gradients of those inputs, and the float32 sum of a bfloat16
/// gradient of the weight, which is placed in the block's memory, empty at this point, while scratch is full of logits.
struct LinearCrossEntropyNode : Node {
  Weight* w = nullptr;
  Weight* lora_b = nullptr;
  float scaling = 0;
  CrossEntropyLoss loss;
  GradDest dw;
  GradRounding rounding;
  Var dx, dxa, wide_dw;

  std::string_view kind() const override { return "linear_cross_entropy"; }
  OpGroup group() const override { return OpGroup::kHead; }
  /// FLOPs of the logits; a training tape's forward also computes gradients.
  double flops(const Tape&) const override {
    return 2.0 * static_cast<double>(loss.tokens.count() * w->shape().numel());
  }
  bool starts_gradient() const override { return true; }
  bool backward_reads_weights() const override { return false; }  // forward has written all gradients

  void forward(Tape& tape) override {
    // A second run would add to the totals and to dW again; the outputs are kept, so it never happens.
    HONE_ASSERT(!tape.replaying());
    LinearCrossEntropyArgs args{.x = tape.data(inputs[0]),
                                .w = w->view().dense(),
                                .scaling = scaling,
                                .logit_scale = loss.logit_scale,
                                .soft_cap = loss.soft_cap,
                                .label_smoothing = loss.label_smoothing,
                                .tokens = loss.tokens,
                                .scalars = loss.scalars,
                                .totals = loss.totals,
                                .token_loss = loss.token_loss,
                                .dw = wide_dw.defined() ? GradDest{tape.data(wide_dw)} : dw,
                                .dlora_b = {},
                                .max_logits_bytes = loss.max_logits_bytes};
    if (lora_b != nullptr) {
      args.xa = tape.data(inputs[1]);
      args.lora_b = lora_b->view().dense();
      if (tape.training()) args.dlora_b = lora_b->grad();
    }
    if (dx.defined()) args.dx = tape.data(dx);
    if (dxa.defined()) args.dxa = tape.data(dxa);
    linear_cross_entropy(tape.context(), args);
    if (wide_dw.defined()) store_gradient(tape.context(), {.src = args.dw.dst, .dst = dw, .rounding = rounding});
  }

  void backward(Tape& tape) override {
    if (dx.defined()) hand_over(tape, inputs[0], dx);
    if (dxa.defined()) hand_over(tape, inputs[1], dxa);
  }

  static void hand_over(Tape& tape, Var input, Var gradient) {
    if (tape.alias_grad(input, tape.data(gradient))) return;
    const GradDest dest = tape.grad_dest(input);
    add(tape.context(), {.a = tape.data(gradient), .b = {}, .y = dest.dst, .beta = dest.beta});
  }
};

}  // namespace

void linear_cross_entropy(Tape& tape, Var x, Weight& w, const Adapter* adapter, const CrossEntropyLoss& loss) {
  HONE_ASSERT(tape.shape(x).rank() == 2 && w.shape() == Shape({w.shape()[0], tape.shape(x)[1]}));
  auto node = std::make_unique<LinearCrossEntropyNode>();
  node->w = &w;
  node->loss = loss;
  node->inputs = {x};
  if (adapter != nullptr) {
    HONE_ASSERT(adapter->magnitude == nullptr);
    HONE_ASSERT(adapter->lora_b->shape() == Shape({w.shape()[0], adapter->lora_a->shape()[0]}));
    node->lora_b = adapter->lora_b;
    node->scaling = adapter->scaling;
    node->inputs.push_back(lora_down(tape, x, *adapter, loss.dropout));
  }
  const auto add_gradient_of = [&](Var input) {
    return tape.requires_grad(input) ? tape.add_output(*node, tape.shape(input), tape.dtype(input), Keep::kAlways)
                                     : Var{};
  };
  node->dx = add_gradient_of(x);
  if (adapter != nullptr) node->dxa = add_gradient_of(node->inputs[1]);
  if (tape.training()) node->dw = w.grad();
  if (node->dw.wanted() && node->dw.dst.dtype == DType::kBF16) {
    node->wide_dw = tape.add_output(*node, w.shape(), DType::kF32);
    if (const auto* narrow = dynamic_cast<const NarrowGradWeight*>(&w)) node->rounding = narrow->rounding();
  }
  tape.record(std::move(node));
}

}  // namespace hone
