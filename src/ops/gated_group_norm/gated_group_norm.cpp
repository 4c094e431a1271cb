#include "ops/gated_group_norm/gated_group_norm.h"

#include "kernels/device_dispatch.h"

namespace hone {

void gated_group_norm(const Context& context, const GatedGroupNormArgs& args) {
  dispatch(context, args, &cpu::gated_group_norm, HONE_CUDA_OP(gated_group_norm));
}
void gated_group_norm_grad(const Context& context, const GatedGroupNormGradArgs& args) {
  dispatch(context, args, &cpu::gated_group_norm_grad, &cuda::gated_group_norm_grad);
}

namespace {

struct GatedGroupNormNode : Node {
  Weight* w = nullptr;
  int64_t groups = 1;
  float eps = 0;

  std::string_view kind() const override { return "gated_group_norm"; }

  GatedGroupNormArgs args(Tape& tape) const {
    return {.x = tape.data(inputs[0]),
            .z = tape.data(inputs[1]),
            .w = w->view().dense(),
            .y = {},
            .groups = groups,
            .eps = eps};
  }

  void forward(Tape& tape) override {
    GatedGroupNormArgs call = args(tape);
    call.y = tape.data(outputs[0]);
    gated_group_norm(tape.context(), call);
  }

  void backward(Tape& tape) override {
    gated_group_norm_grad(tape.context(), {.forward = args(tape),
                                           .dy = tape.grad(outputs[0]),
                                           .dx = tape.grad_dest(inputs[0]),
                                           .dz = tape.grad_dest(inputs[1]),
                                           .dw = w->grad()});
  }
};

}  // namespace

Var gated_group_norm(Tape& tape, Var x, Var z, Weight& w, int64_t groups, float eps) {
  HONE_ASSERT(tape.shape(x) == tape.shape(z) && tape.dtype(x) == tape.dtype(z));
  HONE_ASSERT(w.shape() == Shape{tape.shape(x)[1]} && groups > 0 && w.shape()[0] % groups == 0);
  HONE_ASSERT(w.shape()[0] / groups <= kMaxGatedGroup);
  auto node = std::make_unique<GatedGroupNormNode>();
  node->w = &w;
  node->groups = groups;
  node->eps = eps;
  node->inputs = {x, z};
  node->saved = {x, z};
  node->weights_want_grad = w.wants_grad();
  const Var y = tape.add_output(*node, tape.shape(x), tape.dtype(x));
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
