#include "ops/gated_delta_rule/gated_delta_rule.h"

#include "kernels/device_dispatch.h"

namespace hone {

void gated_delta_rule(const Context& context, const DeltaRuleArgs& args) {
  dispatch(context, args, &cpu::gated_delta_rule, &cuda::gated_delta_rule);
}
void gated_delta_rule_grad(const Context& context, const DeltaRuleGradArgs& args) {
  dispatch(context, args, &cpu::gated_delta_rule_grad, &cuda::gated_delta_rule_grad);
}

namespace {

struct DeltaRuleNode : Node {
  Weight* a_log = nullptr;
  Weight* dt_bias = nullptr;
  DeltaHeads heads;
  PackedSequences sequences;
  DeltaState state;

  std::string_view kind() const override { return "gated_delta_rule"; }
  OpGroup group() const override { return OpGroup::kAttention; }
  /// FLOPs of the recurrence: the state is read with the key, updated, and read with the query. Chunks need more.
  double flops(const Tape& tape) const override {
    return 6.0 * static_cast<double>(tape.shape(outputs[0]).numel() * heads.key_dim);
  }

  DeltaRuleArgs args(Tape& tape) const {
    return {.qkv = tape.data(inputs[0]),
            .a = tape.data(inputs[1]),
            .b = tape.data(inputs[2]),
            .a_log = a_log->view().dense(),
            .dt_bias = dt_bias->view().dense(),
            .out = {},
            .heads = heads,
            .sequences = sequences,
            .state = state};
  }

  void forward(Tape& tape) override {
    DeltaRuleArgs call = args(tape);
    call.out = tape.data(outputs[0]);
    gated_delta_rule(tape.context(), call);
  }

  void backward(Tape& tape) override {
    gated_delta_rule_grad(tape.context(), {.forward = args(tape),
                                           .dout = tape.grad(outputs[0]),
                                           .dqkv = tape.grad_dest(inputs[0]),
                                           .da = tape.grad_dest(inputs[1]),
                                           .db = tape.grad_dest(inputs[2]),
                                           .da_log = a_log->grad(),
                                           .ddt_bias = dt_bias->grad()});
  }
};

}  // namespace

Var gated_delta_rule(Tape& tape, const DeltaRuleInputs& in, const DeltaHeads& heads, const PackedSequences& sequences,
                     const DeltaState& state) {
  const int64_t tokens = tape.shape(in.qkv)[0], value_heads = heads.num_value_heads;
  HONE_ASSERT(heads.num_key_heads > 0 && value_heads % heads.num_key_heads == 0);
  HONE_ASSERT(tape.shape(in.qkv) == (Shape{tokens, heads.width()}));
  for (const Var gate : {in.a, in.b}) {
    HONE_ASSERT(tape.shape(gate) == (Shape{tokens, value_heads}) && tape.dtype(gate) == tape.dtype(in.qkv));
  }
  HONE_ASSERT(in.a_log->shape() == Shape{value_heads} && in.dt_bias->shape() == Shape{value_heads});
  if (state.s.defined()) {
    HONE_ASSERT(!tape.training(), "a recurrent state is for generation");
    HONE_ASSERT(state.s.dtype == DType::kF32 && state.lengths.shape == Shape{sequences.num_documents});
    HONE_ASSERT(state.s.shape == (Shape{sequences.num_documents, value_heads, heads.key_dim, heads.value_dim}));
  }
  auto node = std::make_unique<DeltaRuleNode>();
  node->a_log = in.a_log;
  node->dt_bias = in.dt_bias;
  node->heads = heads;
  node->sequences = sequences;
  node->state = state;
  node->inputs = {in.qkv, in.a, in.b};
  node->saved = node->inputs;
  node->weights_want_grad = in.a_log->wants_grad() || in.dt_bias->wants_grad();
  const Var out = tape.add_output(*node, {tokens, value_heads * heads.value_dim}, tape.dtype(in.qkv));
  tape.record(std::move(node));
  return out;
}

}  // namespace hone
