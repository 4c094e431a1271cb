#include "ops/expert_scale/expert_scale.h"

#include "kernels/device_dispatch.h"

namespace hone {

void expert_scale(const Context& context, const ExpertScaleArgs& args) {
  dispatch(context, args, &cpu::expert_scale, HONE_CUDA_OP(expert_scale));
}
void expert_scale_grad(const Context& context, const ExpertScaleGradArgs& args) {
  dispatch(context, args, &cpu::expert_scale_grad, HONE_CUDA_OP(expert_scale_grad));
}

namespace {

struct ExpertScaleNode : Node {
  Weight* scale = nullptr;

  std::string_view kind() const override { return "expert_scale"; }

  void forward(Tape& tape) override {
    expert_scale(tape.context(), {.weights = tape.data(inputs[0]),
                                  .ids = tape.data(inputs[1]),
                                  .scale = scale->view().dense(),
                                  .y = tape.data(outputs[0])});
  }

  void backward(Tape& tape) override {
    expert_scale_grad(tape.context(), {.weights = tape.data(inputs[0]),
                                       .ids = tape.data(inputs[1]),
                                       .scale = scale->view().dense(),
                                       .dy = tape.grad(outputs[0]),
                                       .dweights = tape.grad_dest(inputs[0]),
                                       .dscale = scale->grad()});
  }
};

}  // namespace

Var expert_scale(Tape& tape, Var weights, Var ids, Weight& scale) {
  HONE_ASSERT(tape.shape(weights) == tape.shape(ids) && tape.shape(ids).rank() == 2 && scale.shape().rank() == 1);
  auto node = std::make_unique<ExpertScaleNode>();
  node->scale = &scale;
  node->weights_want_grad = scale.wants_grad();
  node->inputs = {weights, ids};
  node->saved = {weights, ids};
  const Var y = tape.add_output(*node, tape.shape(weights), tape.dtype(weights));
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
