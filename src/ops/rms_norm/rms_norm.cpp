#include "ops/rms_norm/rms_norm.h"

#include "kernels/device_dispatch.h"
#include "ops/add/add.h"

namespace hone {

void rms_norm(const Context& context, const RmsNormArgs& args) {
  dispatch(context, args, &cpu::rms_norm, HONE_CUDA_OP(rms_norm));
}
void rms_norm_grad(const Context& context, const RmsNormGradArgs& args) {
  dispatch(context, args, &cpu::rms_norm_grad, &cuda::rms_norm_grad);
}

namespace {

/// The residual sum, which the following norm computes; runs alone only in recomputation.
struct ResidualSumNode : Node {
  float scale = 1.0f;

  std::string_view kind() const override { return "add"; }

  void forward(Tape& tape) override {
    if (!tape.replaying()) return;
    add(tape.context(),
        {.a = tape.data(inputs[0]), .b = tape.data(inputs[1]), .y = tape.data(outputs[0]), .scale = scale});
  }

  void backward(Tape& tape) override { hand_down_sum(tape, inputs[0], inputs[1], scale, tape.grad(outputs[0])); }
};

struct RmsNormNode : Node {
  Weight* w = nullptr;  // may be null
  int64_t width = 0;
  float eps = 0, delta_scale = 1.0f;
  NormWeighting weighting = NormWeighting::kPlain;
  Var residual, delta;  // defined if inputs[0] is their sum, which this node writes in its first run

  std::string_view kind() const override { return "rms_norm"; }
  RecomputeLevel recomputed_from() const override { return RecomputeLevel::kNorms; }

  void forward(Tape& tape) override {
    RmsNormArgs args{.x = runs(tape.data(inputs[0])),
                     .w = weight(),
                     .y = runs(tape.data(outputs[0])),
                     .eps = eps,
                     .weighting = weighting};
    if (delta.defined() && !tape.replaying()) {
      args.sum = args.x;
      args.x = tape.data(residual);
      args.delta = tape.data(delta);
      args.delta_scale = delta_scale;
    }
    rms_norm(tape.context(), args);
  }

  void backward(Tape& tape) override {
    GradDest dx = tape.grad_dest(inputs[0]);
    if (dx.wanted()) dx.dst = runs(dx.dst);
    rms_norm_grad(tape.context(), {.x = runs(tape.data(inputs[0])),
                                   .w = weight(),
                                   .dy = runs(tape.grad(outputs[0])),
                                   .dx = dx,
                                   .dw = w ? w->grad() : GradDest{},
                                   .eps = eps,
                                   .weighting = weighting});
  }

  /// The rows that are normalised: all of a token, or runs of it.
  Tensor runs(const Tensor& tensor) const { return tensor.reshaped({tensor.numel() / width, width}); }
  Tensor weight() const { return w ? w->view().dense() : Tensor{}; }
};

std::unique_ptr<RmsNormNode> make_norm(Tape& tape, Var x, Weight& w, float eps, NormWeighting weighting) {
  HONE_ASSERT(tape.shape(x).rank() == 2 && w.shape() == Shape({tape.shape(x)[1]}));
  auto node = std::make_unique<RmsNormNode>();
  node->w = &w;
  node->width = tape.shape(x)[1];
  node->eps = eps;
  node->weighting = weighting;
  node->inputs = {x};
  node->saved = {x};
  node->weights_want_grad = w.wants_grad();
  return node;
}

}  // namespace

Var rms_norm(Tape& tape, Var x, Weight& w, float eps, NormWeighting weighting) {
  auto node = make_norm(tape, x, w, eps, weighting);
  const Var y = tape.add_output(*node, tape.shape(x), tape.dtype(x));
  tape.record(std::move(node));
  return y;
}

Var rms_norm(Tape& tape, Var x, int64_t width, float eps) {
  HONE_ASSERT(tape.shape(x).rank() == 2 && tape.shape(x)[1] % width == 0);
  auto node = std::make_unique<RmsNormNode>();
  node->width = width;
  node->eps = eps;
  node->inputs = {x};
  node->saved = {x};
  const Var y = tape.add_output(*node, tape.shape(x), tape.dtype(x));
  tape.record(std::move(node));
  return y;
}

SumAndNorm add_rms_norm(Tape& tape, Var x, Var delta, Weight& w, float eps, NormWeighting weighting, float scale) {
  HONE_ASSERT(tape.shape(x) == tape.shape(delta) && tape.dtype(x) == tape.dtype(delta));
  auto sum_node = std::make_unique<ResidualSumNode>();
  sum_node->inputs = {x, delta};
  sum_node->scale = scale;
  const Var sum = tape.add_output(*sum_node, tape.shape(x), tape.dtype(x));
  tape.record(std::move(sum_node));
  auto node = make_norm(tape, sum, w, eps, weighting);
  node->residual = x;
  node->delta = delta;
  node->delta_scale = scale;
  const Var y = tape.add_output(*node, tape.shape(x), tape.dtype(x));
  tape.record(std::move(node));
  return {sum, y};
}

}  // namespace hone
