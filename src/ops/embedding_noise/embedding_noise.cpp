#include "ops/embedding_noise/embedding_noise.h"

#include "kernels/device_dispatch.h"
#include "ops/add/add.h"

namespace hone {

void embedding_noise(const Context& context, const EmbeddingNoiseArgs& args) {
  dispatch(context, args, &cpu::embedding_noise, HONE_CUDA_OP(embedding_noise));
}

namespace {

struct EmbeddingNoiseNode : Node {
  EmbeddingNoise noise;

  std::string_view kind() const override { return "embedding_noise"; }

  void forward(Tape& tape) override {
    embedding_noise(tape.context(), {.x = tape.data(inputs[0]), .y = tape.data(outputs[0]), .noise = noise});
  }

  void backward(Tape& tape) override {
    const Tensor dy = tape.grad(outputs[0]);
    if (!tape.requires_grad(inputs[0]) || tape.alias_grad(inputs[0], dy)) return;
    const GradDest dx = tape.grad_dest(inputs[0]);
    add(tape.context(), {.a = dy, .b = {}, .y = dx.dst, .beta = dx.beta});
  }
};

}  // namespace

Var embedding_noise(Tape& tape, Var x, const EmbeddingNoise& noise) {
  HONE_ASSERT(tape.shape(x).rank() == 2 && noise.alpha > 0.0f);
  HONE_ASSERT(noise.rows.scalars != nullptr && noise.rows.sample_ids.defined() && noise.rows.positions.defined());
  HONE_ASSERT(noise.sequences.cu_seqlens.defined());
  auto node = std::make_unique<EmbeddingNoiseNode>();
  node->noise = noise;
  node->inputs = {x};
  const Var y = tape.add_output(*node, tape.shape(x), tape.dtype(x));
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
