#include "ops/router/router.h"

#include "kernels/device_dispatch.h"
#include "kernels/weight_gradient/weight_gradient.h"

namespace hone {

void router(const Context& context, const RouterArgs& args) { dispatch(context, args, &cpu::router, &cuda::router); }
void router_grad(const Context& context, const RouterGradArgs& args) {
  dispatch(context, args, &cpu::router_grad, &cuda::router_grad);
}

namespace {

struct RouterNode : Node {
  RouterWeights weights;
  RouterOptions options;

  Tensor bias() const { return weights.bias ? weights.bias->view().dense() : Tensor{}; }

  std::string_view kind() const override { return "router"; }
  OpGroup group() const override { return OpGroup::kExperts; }
  double flops(const Tape& tape) const override {
    return 2.0 * static_cast<double>(tape.shape(inputs[0])[0] * weights.weight->shape().numel());
  }

  void forward(Tape& tape) override {
    const Tensor ids = tape.data(outputs[0]);
    router(tape.context(),
           {.x = tape.data(inputs[0]),
            .weight = weights.weight->view().dense(),
            .bias = bias(),
            .selection_bias = weights.selection_bias ? weights.selection_bias->view().dense() : Tensor{},
            .given_ids = tape.replaying() ? ids : options.forced_ids,
            .ids = ids,
            .weights = tape.data(outputs[1]),
            .rule = options.rule,
            .statistics = tape.replaying() ? RouterStatistics{} : options.statistics});
  }

  void backward(Tape& tape) override {
    const NarrowGradient dweight(tape.context(), *weights.weight);
    router_grad(tape.context(), {.x = tape.data(inputs[0]),
                                 .weight = weights.weight->view().dense(),
                                 .bias = bias(),
                                 .ids = tape.data(outputs[0]),
                                 .dweights = tape.grad(outputs[1]),
                                 .rule = options.rule,
                                 .aux = options.aux,
                                 .z_loss = options.z_loss,
                                 .dx = tape.grad_dest(inputs[0]),
                                 .dweight = dweight.dest,
                                 .dbias = weights.bias ? weights.bias->grad() : GradDest{}});
    dweight.store();
  }
};

}  // namespace

RoutedTokens router(Tape& tape, Var x, const RouterWeights& weights, const RouterOptions& options) {
  const RouterRule& rule = options.rule;
  const int64_t tokens = tape.shape(x)[0], experts = weights.weight->shape()[0];
  HONE_ASSERT(tape.shape(x).rank() == 2 && weights.weight->shape() == (Shape{experts, tape.shape(x)[1]}));
  for (const Weight* bias : {static_cast<const Weight*>(weights.bias), weights.selection_bias}) {
    HONE_ASSERT(bias == nullptr || bias->shape() == Shape{experts});
  }
  HONE_ASSERT(rule.groups >= 1 && rule.groups <= kMaxRouterGroups && experts % rule.groups == 0);
  HONE_ASSERT(rule.kept_groups >= 1 && rule.kept_groups <= rule.groups);
  HONE_ASSERT(rule.group_score != GroupScore::kTopTwo || experts >= 2 * rule.groups);
  HONE_ASSERT(options.top_k >= 1 && options.top_k <= experts / rule.groups * rule.kept_groups);
  const Shape routed{tokens, options.top_k};
  HONE_ASSERT(!options.forced_ids.defined() || options.forced_ids.shape == routed);
  HONE_ASSERT(!options.aux.fractions.defined() || (options.aux.scalars != nullptr && options.aux.num_layers > 0));
  HONE_ASSERT(options.z_loss.coefficient == 0 || (options.z_loss.scalars != nullptr && options.z_loss.num_layers > 0));
  auto node = std::make_unique<RouterNode>();
  node->weights = weights;
  node->options = options;
  node->inputs = {x};
  node->weights_want_grad = weights.weight->wants_grad() || (weights.bias != nullptr && weights.bias->wants_grad());
  const Var ids = tape.add_output(*node, routed, DType::kI32, Keep::kAlways);
  const Var chosen = tape.add_output(*node, routed, tape.dtype(x));
  node->saved = {x, ids};
  tape.record(std::move(node));
  return {ids, chosen};
}

}  // namespace hone
