#include "ops/moe_experts/moe_experts.h"

#include <utility>

#include "kernels/device_dispatch.h"
#include "kernels/weight_gradient/weight_gradient.h"
#include "ops/moe_experts/expert_half.h"
#include "ops/moe_experts/spread_experts.h"
#include "ops/moe_experts/tiled_experts.h"
#include "ops/unpack_weights/unpacked_weight.h"

namespace hone {

namespace {

/// Only frozen weights may have formats other than dense.
void check_weight(const Context& context, const WeightView& weight, bool wants_grad = false) {
  const Tensor &payload = weight.payload, &scales = weight.scales;
  const auto expected = weight.format->scales(payload.shape);
  HONE_ASSERT(scales.defined() == expected.has_value());
  if (weight.is_dense()) return;
  const auto reads = [&](WeightProduct product) { return weight.format->read_in_place(product, context.device()); };
  HONE_ASSERT(!wants_grad && (reads(WeightProduct::kExperts) || reads(WeightProduct::kFp8Experts)));
  if (weight.packed) return;
  HONE_ASSERT(payload.shape.rank() == 3 && weight.format->fits(payload.shape));
  HONE_ASSERT(payload.dtype == weight.format->payload(payload.shape, payload.dtype).dtype);
  HONE_ASSERT(!expected || (scales.dtype == expected->dtype && scales.shape == expected->shape));
}

}  // namespace

void moe_permutation(const Context& context, const ExpertRowsArgs& args) {
  HONE_ASSERT(args.ids.numel() <= INT32_MAX);
  dispatch(context, args, &cpu::moe_permutation, &cuda::moe_permutation);
}
void moe_gate_up(const Context& context, const MoeGateUpArgs& args) {
  check_weight(context, args.weight);
  dispatch(context, args, &cpu::moe_gate_up, &cuda::moe_gate_up);
}
void moe_gate_up_grad(const Context& context, const MoeGateUpGradArgs& args) {
  check_weight(context, args.weight, args.dweight.wanted());
  dispatch(context, args, &cpu::moe_gate_up_grad, &cuda::moe_gate_up_grad);
}
void moe_down(const Context& context, const MoeDownArgs& args) {
  check_weight(context, args.weight);
  dispatch(context, args, &cpu::moe_down, &cuda::moe_down);
}
void moe_down_grad(const Context& context, const MoeDownGradArgs& args) {
  check_weight(context, args.weight, args.dweight.wanted());
  dispatch(context, args, &cpu::moe_down_grad, &cuda::moe_down_grad);
}

namespace {

/// ExpertRows as values of a tape.
struct RowVars {
  Var offsets, token, assignment, row;

  ExpertRows data(const Tape& tape) const {
    return {tape.data(offsets), tape.data(token), tape.data(assignment), tape.data(row)};
  }
  void append_to(std::vector<Var>& vars) const { vars.insert(vars.end(), {offsets, token, assignment, row}); }
};

struct PermutationNode : Node {
  RowVars rows;

  std::string_view kind() const override { return "moe_permutation"; }
  OpGroup group() const override { return OpGroup::kExperts; }
  double flops(const Tape&) const override { return 0; }
  void forward(Tape& tape) override {
    moe_permutation(tape.context(), {.ids = tape.data(inputs[0]), .rows = rows.data(tape)});
  }
  void backward(Tape&) override {}
};

RowVars record_permutation(Tape& tape, Var ids, int64_t experts) {
  const Shape routed = tape.shape(ids);
  auto node = std::make_unique<PermutationNode>();
  // Integers have no gradient: outputs are added before the input, so that they do not inherit the router's.
  RowVars& rows = node->rows;
  rows.offsets = tape.add_output(*node, {experts + 1}, DType::kI64);
  rows.token = tape.add_output(*node, {routed.numel()}, DType::kI32);
  rows.assignment = tape.add_output(*node, {routed.numel()}, DType::kI32);
  rows.row = tape.add_output(*node, routed, DType::kI32);
  node->inputs = {ids};
  const RowVars result = rows;
  tape.record(std::move(node));
  return result;
}

/// A node of one half.
struct ExpertNode : Node {
  RowVars rows;
  ExpertHalf half;
  MlpActivation function;
  LoraDropoutContext dropout;

  OpGroup group() const override { return OpGroup::kExperts; }
  /// Each chosen row is multiplied with one expert's matrix.
  double flops(const Tape& tape) const override {
    return 2.0 * static_cast<double>(tape.shape(rows.token).numel() * half.products_of_a_row());
  }

  WeightProduct product(const Tape& tape) const { return half.product(tape.context(), function); }

  void set_half(const Tape& tape, ExpertHalf of, const LoraDropoutContext& context) {
    half = std::move(of);
    half.check(tape.training(), context);
    weights_want_grad = half.wants_grad();
    dropout = context;
  }
};

struct GateUpNode : ExpertNode {
  std::string_view kind() const override { return "moe_gate_up"; }
  RecomputeLevel recomputed_from() const override { return RecomputeLevel::kExperts; }

  // Outputs: h, the activation, and with adapters x Aᵀ.
  void forward(Tape& tape) override {
    const UnpackedWeight unpacked(tape.context(), *half.weight, product(tape));
    moe_gate_up(tape.context(), {.rows = rows.data(tape),
                                 .x = tape.data(inputs[0]),
                                 .weight = unpacked.view,
                                 .bias = half.bias_view(),
                                 .adapters = half.adapter_views(tape.training()),
                                 .dropout = dropout,
                                 .function = function,
                                 .xa = half.adapters.empty() ? Tensor{} : tape.data(outputs[2]),
                                 .h = tape.data(outputs[0]),
                                 .activation = tape.data(outputs[1]),
                                 .decode = !tape.training()});
  }

  bool reads_x() const { return half.weight->wants_grad() || half.wants_lora_a(); }

  void backward(Tape& tape) override {
    const NarrowGradient dweight(tape.context(), *half.weight, true);
    const UnpackedWeight unpacked(tape.context(), *half.weight, product(tape));
    moe_gate_up_grad(tape.context(), {.rows = rows.data(tape),
                                      .x = reads_x() ? tape.data(inputs[0]) : Tensor{},
                                      .weight = unpacked.view,
                                      .adapters = half.adapter_views(tape.training()),
                                      .dropout = dropout,
                                      .function = function,
                                      .xa = half.wants_lora_b() ? tape.data(outputs[2]) : Tensor{},
                                      .dh = tape.grad(outputs[0]),
                                      .dx = tape.grad_dest(inputs[0]),
                                      .dweight = dweight.dest,
                                      .dbias = half.bias_grad(),
                                      .dadapters = half.adapter_grads()});
    dweight.store();
  }
};

struct DownNode : ExpertNode {
  std::string_view kind() const override { return "moe_down"; }

  // Inputs: h, the router's weights, the activation.
  void forward(Tape& tape) override {
    const UnpackedWeight unpacked(tape.context(), *half.weight, product(tape));
    moe_down(tape.context(), {.rows = rows.data(tape),
                              .activation = tape.data(inputs[2]),
                              .weights = tape.data(inputs[1]),
                              .weight = unpacked.view,
                              .bias = half.bias_view(),
                              .adapters = half.adapter_views(tape.training()),
                              .dropout = dropout,
                              .out = tape.data(outputs[0]),
                              .decode = !tape.training()});
  }

  void backward(Tape& tape) override {
    // h is not read after this, so its gradient overwrites it.
    const Tensor h = tape.data(inputs[0]);
    const GradDest dh = tape.alias_grad(inputs[0], h) ? GradDest{h, 0.0f} : tape.grad_dest(inputs[0]);
    const NarrowGradient dweight(tape.context(), *half.weight, true);
    const UnpackedWeight unpacked(tape.context(), *half.weight, product(tape));
    moe_down_grad(tape.context(), {.rows = rows.data(tape),
                                   .h = h,
                                   .weights = tape.data(inputs[1]),
                                   .weight = unpacked.view,
                                   .bias = half.bias_view(),
                                   .adapters = half.adapter_views(tape.training()),
                                   .dropout = dropout,
                                   .function = function,
                                   .dout = tape.grad(outputs[0]),
                                   .dh = dh,
                                   .dweights = tape.grad_dest(inputs[1]),
                                   .dweight = dweight.dest,
                                   .dbias = half.bias_grad(),
                                   .dadapters = half.adapter_grads()});
    dweight.store();
  }
};

}  // namespace

Var moe_experts(Tape& tape, Var x, const RoutedTokens& routed, const ExpertWeights& weights,
                const ExpertAdapters& adapters, const LoraDropoutContext& dropout, TokenExchange* exchange,
                int64_t token_tile) {
  if (exchange != nullptr) return spread_experts(tape, x, routed, weights, adapters, dropout, *exchange);
  const Shape up = weights.gate_up->shape();  // [E, C, H]
  HONE_ASSERT(weights.gate_up->local_shape() == up, "a pass of spread experts that nobody has begun");
  if (token_tile > 0) return tiled_experts(tape, x, routed, weights, adapters, dropout, token_tile);
  const int64_t experts = up[0], intermediate = weights.function.width(up[1]), hidden = up[2];
  const int64_t tokens = tape.shape(x)[0], rows_count = tape.shape(routed.ids).numel();
  HONE_ASSERT(up[1] == weights.function.columns(intermediate));
  HONE_ASSERT(weights.down->shape() == (Shape{experts, hidden, intermediate}));
  HONE_ASSERT(tape.shape(x) == (Shape{tokens, hidden}) && tape.shape(routed.ids)[0] == tokens);
  HONE_ASSERT(tape.shape(routed.weights) == tape.shape(routed.ids) && tape.dtype(routed.weights) == tape.dtype(x));
  const RowVars rows = record_permutation(tape, routed.ids, experts);

  auto gate_up = std::make_unique<GateUpNode>();
  gate_up->rows = rows;
  gate_up->set_half(tape, {weights.gate_up, weights.gate_up_bias, adapters.gate_up}, dropout);
  gate_up->function = weights.function;
  gate_up->inputs = {x};
  rows.append_to(gate_up->inputs);
  const Var h = tape.add_output(*gate_up, {rows_count, up[1]}, tape.dtype(x));
  const Var activation = tape.add_output(*gate_up, {rows_count, intermediate}, tape.dtype(x));
  rows.append_to(gate_up->saved);
  if (gate_up->reads_x()) gate_up->saved.push_back(x);
  if (!adapters.gate_up.empty()) {
    const Var xa = tape.add_output(*gate_up, {rows_count, gate_up->half.rank_columns()}, tape.dtype(x));
    if (gate_up->half.wants_lora_b()) gate_up->saved.push_back(xa);
  }
  tape.record(std::move(gate_up));

  auto down = std::make_unique<DownNode>();
  down->rows = rows;
  down->set_half(tape, {weights.down, weights.down_bias, adapters.down}, dropout);
  down->function = weights.function;
  down->inputs = {h, routed.weights, activation};
  rows.append_to(down->inputs);
  down->saved = {h, routed.weights};
  rows.append_to(down->saved);
  const Var out = tape.add_output(*down, {tokens, hidden}, tape.dtype(x));
  tape.record(std::move(down));
  return out;
}

}  // namespace hone
