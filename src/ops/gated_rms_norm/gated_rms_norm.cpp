#include "ops/gated_rms_norm/gated_rms_norm.h"

#include "kernels/device_dispatch.h"

namespace hone {

void gated_rms_norm(const Context& context, const GatedRmsNormArgs& args) {
  dispatch(context, args, &cpu::gated_rms_norm, HONE_CUDA_OP(gated_rms_norm));
}
void gated_rms_norm_grad(const Context& context, const GatedRmsNormGradArgs& args) {
  dispatch(context, args, &cpu::gated_rms_norm_grad, &cuda::gated_rms_norm_grad);
}

namespace {

struct GatedRmsNormNode : Node {
  Weight* w = nullptr;
  float eps = 0;

  std::string_view kind() const override { return "gated_rms_norm"; }

  void forward(Tape& tape) override {
    gated_rms_norm(tape.context(), {.x = tape.data(inputs[0]),
                                    .z = tape.data(inputs[1]),
                                    .w = w->view().dense(),
                                    .y = tape.data(outputs[0]),
                                    .eps = eps});
  }

  void backward(Tape& tape) override {
    gated_rms_norm_grad(tape.context(), {.x = tape.data(inputs[0]),
                                         .z = tape.data(inputs[1]),
                                         .w = w->view().dense(),
                                         .dy = tape.grad(outputs[0]),
                                         .dx = tape.grad_dest(inputs[0]),
                                         .dz = tape.grad_dest(inputs[1]),
                                         .dw = w->grad(),
                                         .eps = eps});
  }
};

}  // namespace

Var gated_rms_norm(Tape& tape, Var x, Var z, Weight& w, float eps) {
  HONE_ASSERT(tape.shape(x) == tape.shape(z) && tape.dtype(x) == tape.dtype(z));
  HONE_ASSERT(w.shape().rank() == 1 && w.shape()[0] <= kMaxGatedNorm && tape.shape(x)[1] % w.shape()[0] == 0);
  auto node = std::make_unique<GatedRmsNormNode>();
  node->w = &w;
  node->eps = eps;
  node->inputs = {x, z};
  node->saved = {x, z};
  node->weights_want_grad = w.wants_grad();
  const Var y = tape.add_output(*node, tape.shape(x), tape.dtype(x));
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
