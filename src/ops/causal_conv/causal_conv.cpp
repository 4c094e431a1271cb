#include "ops/causal_conv/causal_conv.h"

#include "kernels/device_dispatch.h"
#include "kernels/weight_gradient/weight_gradient.h"

namespace hone {

void causal_conv(const Context& context, const CausalConvArgs& args) {
  dispatch(context, args, &cpu::causal_conv, HONE_CUDA_OP(causal_conv));
}
void causal_conv_grad(const Context& context, const CausalConvGradArgs& args) {
  dispatch(context, args, &cpu::causal_conv_grad, &cuda::causal_conv_grad);
}

namespace {

struct CausalConvNode : Node {
  Weight* w = nullptr;
  Weight* bias = nullptr;
  PackedSequences sequences;
  ConvState state;

  std::string_view kind() const override { return "causal_conv"; }
  double flops(const Tape& tape) const override {
    return 2.0 * static_cast<double>(tape.shape(inputs[0])[0] * w->shape().numel());
  }

  Tensor bias_values() const { return bias == nullptr ? Tensor{} : bias->view().dense(); }

  void forward(Tape& tape) override {
    causal_conv(tape.context(), {.x = tape.data(inputs[0]),
                                 .w = w->view().dense(),
                                 .y = tape.data(outputs[0]),
                                 .sequences = sequences,
                                 .bias = bias_values(),
                                 .state = state});
  }

  void backward(Tape& tape) override {
    const NarrowGradient dw(tape.context(), *w);
    causal_conv_grad(tape.context(), {.x = tape.data(inputs[0]),
                                      .w = w->view().dense(),
                                      .dy = tape.grad(outputs[0]),
                                      .dx = tape.grad_dest(inputs[0]),
                                      .dw = dw.dest,
                                      .sequences = sequences,
                                      .bias = bias_values(),
                                      .dbias = bias == nullptr ? GradDest{} : bias->grad()});
    dw.store();
  }
};

}  // namespace

Var causal_conv(Tape& tape, Var x, Weight& w, Weight* bias, const PackedSequences& sequences, const ConvState& state) {
  const int64_t channels = tape.shape(x)[1], taps = w.shape()[2];
  HONE_ASSERT(w.shape() == (Shape{channels, 1, taps}) && taps >= 1 && taps <= kMaxConvTaps);
  HONE_ASSERT(bias == nullptr || bias->shape() == Shape{channels});
  if (state.inputs.defined()) {
    HONE_ASSERT(!tape.training(), "a convolution's state is for generation");
    HONE_ASSERT(state.inputs.shape == (Shape{sequences.num_documents, taps - 1, channels}));
    HONE_ASSERT(state.inputs.dtype == tape.dtype(x) && state.lengths.shape == Shape{sequences.num_documents});
  }
  auto node = std::make_unique<CausalConvNode>();
  node->w = &w;
  node->bias = bias;
  node->sequences = sequences;
  node->state = state;
  node->inputs = {x};
  node->saved = {x};
  node->weights_want_grad = w.wants_grad() || (bias != nullptr && bias->wants_grad());
  const Var y = tape.add_output(*node, tape.shape(x), tape.dtype(x));
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
