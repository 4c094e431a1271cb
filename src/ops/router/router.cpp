#include "ops/router/router.h"

#include "ops/device_dispatch.h"

namespace hone {

void router(const Context& context, const RouterArgs& args) {
  dispatch(context, args, &cpu::router, HONE_CUDA_OP(router));
}
void router_grad(const Context& context, const RouterGradArgs& args) {
  dispatch(context, args, &cpu::router_grad, HONE_CUDA_OP(router_grad));
}

namespace {

struct RouterNode : Node {
  Weight* weight = nullptr;
  RouterOptions options;

  std::string_view kind() const override { return "router"; }

  void forward(Tape& tape) override {
    const Tensor ids = tape.data(outputs[0]);
    router(tape.context(), {.x = tape.data(inputs[0]),
                            .weight = weight->view().payload,
                            .given_ids = tape.replaying() ? ids : options.forced_ids,
                            .ids = ids,
                            .weights = tape.data(outputs[1]),
                            .normalise = options.normalise,
                            .statistics = tape.replaying() ? RouterStatistics{} : options.statistics});
  }

  void backward(Tape& tape) override {
    router_grad(tape.context(), {.x = tape.data(inputs[0]),
                                 .weight = weight->view().payload,
                                 .ids = tape.data(outputs[0]),
                                 .dweights = tape.grad(outputs[1]),
                                 .normalise = options.normalise,
                                 .aux = options.aux,
                                 .dx = tape.grad_dest(inputs[0]),
                                 .dweight = weight->grad()});
  }
};

}  // namespace

RoutedTokens router(Tape& tape, Var x, Weight& w, const RouterOptions& options) {
  const int64_t tokens = tape.shape(x)[0], experts = w.shape()[0];
  HONE_ASSERT(tape.shape(x).rank() == 2 && w.shape() == (Shape{experts, tape.shape(x)[1]}));
  HONE_ASSERT(options.top_k >= 1 && options.top_k <= experts);
  const Shape routed{tokens, options.top_k};
  HONE_ASSERT(!options.forced_ids.defined() || options.forced_ids.shape == routed);
  HONE_ASSERT(!options.aux.fractions.defined() || (options.aux.scalars != nullptr && options.aux.num_layers > 0));
  auto node = std::make_unique<RouterNode>();
  node->weight = &w;
  node->options = options;
  node->inputs = {x};
  node->weights_want_grad = w.wants_grad();
  const Var ids = tape.add_output(*node, routed, DType::kI32, Keep::kAlways);
  const Var weights = tape.add_output(*node, routed, tape.dtype(x));
  node->saved = {x, ids};
  tape.record(std::move(node));
  return {ids, weights};
}

}  // namespace hone
