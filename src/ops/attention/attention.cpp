#include "ops/attention/attention.h"

#include <algorithm>

#include "kernels/device_dispatch.h"

namespace hone {

void attention(const Context& context, const AttentionArgs& args) {
  dispatch(context, args, &cpu::attention, &cuda::attention);
}

void attention_backward(const Context& context, const AttentionBackwardArgs& args) {
  dispatch(context, args, &cpu::attention_backward, &cuda::attention_backward);
}

namespace {

struct AttentionNode : Node {
  AttentionOptions options;
  PackedSequences sequences;
  Weight* sinks = nullptr;

  std::string_view kind() const override { return "attention"; }
  OpGroup group() const override { return OpGroup::kAttention; }
  RecomputeLevel recomputed_from() const override { return RecomputeLevel::kEverything; }
  /// Assumes that all documents are as long as the longest.
  double flops(const Tape& tape) const override {
    const auto length = static_cast<double>(sequences.max_seqlen), window = static_cast<double>(options.sliding_window);
    const double beyond = window == 0 ? 0 : std::max(length - window, 0.0);
    const double pairs = length == 0 ? 0 : (length * length - beyond * beyond) / 2 / length;  // per token
    return 2 * pairs * static_cast<double>(tape.shape(inputs[0]).numel() + tape.shape(outputs[0]).numel());
  }

  AttentionArgs args(Tape& tape) const {
    return {.q = tape.data(inputs[0]),
            .k = tape.data(inputs[1]),
            .v = tape.data(inputs[2]),
            .out = tape.data(outputs[0]),
            .lse = tape.data(outputs[1]),
            .sinks = sinks ? sinks->view().dense() : Tensor{},
            .options = options,
            .sequences = sequences};
  }

  void forward(Tape& tape) override { attention(tape.context(), args(tape)); }

  void backward(Tape& tape) override {
    attention_backward(tape.context(), {.forward = args(tape),
                                        .dout = tape.grad(outputs[0]),
                                        .dq = tape.grad_dest(inputs[0]),
                                        .dk = tape.grad_dest(inputs[1]),
                                        .dv = tape.grad_dest(inputs[2]),
                                        .dsinks = sinks ? sinks->grad() : GradDest{}});
  }
};

}  // namespace

Var attention(Tape& tape, Var q, Var k, Var v, const AttentionOptions& options, const PackedSequences& sequences,
              Weight* sinks) {
  const int64_t tokens = tape.shape(q)[0];
  HONE_ASSERT(tape.shape(q) == (Shape{tokens, options.num_heads * options.head_dim}));
  HONE_ASSERT(tape.shape(k) == (Shape{tokens, options.num_kv_heads * options.head_dim}));
  HONE_ASSERT(tape.shape(v) == (Shape{tokens, options.num_kv_heads * options.v_head_dim}));
  HONE_ASSERT(tape.dtype(q) == tape.dtype(k) && tape.dtype(q) == tape.dtype(v));
  HONE_ASSERT(sinks == nullptr || sinks->shape() == Shape{options.num_heads});
  auto node = std::make_unique<AttentionNode>();
  node->options = options;
  node->sinks = sinks;
  node->weights_want_grad = sinks != nullptr && sinks->wants_grad();
  node->sequences = sequences;
  node->inputs = {q, k, v};
  const Var out = tape.add_output(*node, {tokens, options.num_heads * options.v_head_dim}, tape.dtype(q));
  const Var lse = tape.add_output(*node, {options.num_heads, tokens}, DType::kF32);
  node->saved = {q, k, v, out, lse};
  tape.record(std::move(node));
  return out;
}

}  // namespace hone
