#include "ops/router_jitter/router_jitter.h"

#include "kernels/device_dispatch.h"

namespace hone {

void router_jitter(const Context& context, const RouterJitterArgs& args) {
  dispatch(context, args, &cpu::router_jitter, HONE_CUDA_OP(router_jitter));
}

namespace {

struct RouterJitterNode : Node {
  RouterJitter jitter;

  std::string_view kind() const override { return "router_jitter"; }

  void forward(Tape& tape) override {
    router_jitter(tape.context(), {.x = tape.data(inputs[0]), .y = tape.data(outputs[0]), .jitter = jitter});
  }

  void backward(Tape& tape) override {
    const GradDest dx = tape.grad_dest(inputs[0]);
    if (!dx.wanted()) return;
    router_jitter(tape.context(), {.x = tape.grad(outputs[0]), .y = dx.dst, .beta = dx.beta, .jitter = jitter});
  }
};

}  // namespace

Var router_jitter(Tape& tape, Var x, const RouterJitter& jitter) {
  HONE_ASSERT(tape.shape(x).rank() == 2 && jitter.noise > 0.0f && jitter.noise < 1.0f);
  HONE_ASSERT(jitter.rows.scalars != nullptr && jitter.rows.sample_ids.defined() && jitter.rows.positions.defined());
  auto node = std::make_unique<RouterJitterNode>();
  node->jitter = jitter;
  node->inputs = {x};
  const Var y = tape.add_output(*node, tape.shape(x), tape.dtype(x));
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
