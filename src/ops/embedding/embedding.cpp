#include "ops/embedding/embedding.h"

#include "kernels/device_dispatch.h"
#include "kernels/weight_gradient/weight_gradient.h"

namespace hone {

void embedding(const Context& context, const EmbeddingArgs& args) {
  dispatch(context, args, &cpu::embedding, HONE_CUDA_OP(embedding));
}
void embedding_grad(const Context& context, const EmbeddingGradArgs& args) {
  dispatch(context, args, &cpu::embedding_grad, &cuda::embedding_grad);
}

namespace {

struct EmbeddingNode : Node {
  Tensor tokens;
  Weight* w = nullptr;
  int64_t padding_idx = -1;

  std::string_view kind() const override { return "embedding"; }
  bool backward_reads_weights() const override { return false; }

  void forward(Tape& tape) override {
    embedding(tape.context(), {.tokens = tokens, .w = w->view().dense(), .y = tape.data(outputs[0])});
  }

  void backward(Tape& tape) override {
    const NarrowGradient dw(tape.context(), *w);
    if (!dw.dest.wanted()) return;
    embedding_grad(tape.context(),
                   {.tokens = tokens, .dy = tape.grad(outputs[0]), .dw = dw.dest, .padding_idx = padding_idx});
    dw.store();
  }
};

}  // namespace

Var embedding(Tape& tape, Tensor tokens, Weight& w, DType dtype, int64_t padding_idx) {
  HONE_ASSERT(tokens.shape.rank() == 1 && tokens.dtype == DType::kI32 && w.shape().rank() == 2);
  auto node = std::make_unique<EmbeddingNode>();
  node->tokens = tokens;
  node->w = &w;
  node->padding_idx = padding_idx;
  node->weights_want_grad = w.wants_grad();
  const Var y = tape.add_output(*node, {tokens.shape[0], w.shape()[1]}, dtype);
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
