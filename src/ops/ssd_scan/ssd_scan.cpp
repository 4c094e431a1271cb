#include "ops/ssd_scan/ssd_scan.h"

#include "kernels/device_dispatch.h"

namespace hone {

void ssd_scan(const Context& context, const SsdScanArgs& args) {
  dispatch(context, args, &cpu::ssd_scan, &cuda::ssd_scan);
}
void ssd_scan_grad(const Context& context, const SsdScanGradArgs& args) {
  dispatch(context, args, &cpu::ssd_scan_grad, &cuda::ssd_scan_grad);
}

namespace {

struct SsdScanNode : Node {
  Weight* a_log = nullptr;
  Weight* dt_bias = nullptr;
  Weight* d = nullptr;
  SsdHeads heads;
  PackedSequences sequences;
  SsdState state;

  std::string_view kind() const override { return "ssd_scan"; }
  OpGroup group() const override { return OpGroup::kAttention; }
  /// FLOPs of the recurrence: the state is updated, and read. Chunks need more.
  double flops(const Tape& tape) const override {
    return 4.0 * static_cast<double>(tape.shape(outputs[0]).numel() * heads.state_size);
  }

  SsdScanArgs args(Tape& tape) const {
    return {.xbc = tape.data(inputs[0]),
            .dt = tape.data(inputs[1]),
            .a_log = a_log->view().dense(),
            .dt_bias = dt_bias->view().dense(),
            .d = d->view().dense(),
            .out = {},
            .heads = heads,
            .sequences = sequences,
            .state = state};
  }

  void forward(Tape& tape) override {
    SsdScanArgs call = args(tape);
    call.out = tape.data(outputs[0]);
    ssd_scan(tape.context(), call);
  }

  void backward(Tape& tape) override {
    ssd_scan_grad(tape.context(), {.forward = args(tape),
                                   .dout = tape.grad(outputs[0]),
                                   .dxbc = tape.grad_dest(inputs[0]),
                                   .ddt = tape.grad_dest(inputs[1]),
                                   .da_log = a_log->grad(),
                                   .ddt_bias = dt_bias->grad(),
                                   .dd = d->grad()});
  }
};

}  // namespace

Var ssd_scan(Tape& tape, const SsdInputs& in, const SsdHeads& heads, const PackedSequences& sequences,
             const SsdState& state) {
  const int64_t tokens = tape.shape(in.xbc)[0], count = heads.num_heads;
  HONE_ASSERT(heads.num_groups > 0 && count % heads.num_groups == 0);
  HONE_ASSERT(heads.head_dim <= kMaxSsdHeadDim && heads.state_size <= kMaxSsdState);
  HONE_ASSERT(tape.shape(in.xbc) == (Shape{tokens, heads.width()}));
  HONE_ASSERT(tape.shape(in.dt) == (Shape{tokens, count}) && tape.dtype(in.dt) == tape.dtype(in.xbc));
  for (const Weight* weight : {in.a_log, in.dt_bias, in.d}) HONE_ASSERT(weight->shape() == Shape{count});
  if (state.s.defined()) {
    HONE_ASSERT(!tape.training(), "a recurrent state is for generation");
    HONE_ASSERT(state.s.dtype == DType::kF32 && state.lengths.shape == Shape{sequences.num_documents});
    HONE_ASSERT(state.s.shape == (Shape{sequences.num_documents, count, heads.state_size, heads.head_dim}));
  }
  auto node = std::make_unique<SsdScanNode>();
  node->a_log = in.a_log;
  node->dt_bias = in.dt_bias;
  node->d = in.d;
  node->heads = heads;
  node->sequences = sequences;
  node->state = state;
  node->inputs = {in.xbc, in.dt};
  node->saved = node->inputs;
  node->weights_want_grad = in.a_log->wants_grad() || in.dt_bias->wants_grad() || in.d->wants_grad();
  const Var out = tape.add_output(*node, {tokens, heads.inner()}, tape.dtype(in.xbc));
  tape.record(std::move(node));
  return out;
}

}  // namespace hone
