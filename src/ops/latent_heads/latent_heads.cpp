#include "ops/latent_heads/latent_heads.h"

#include "kernels/device_dispatch.h"

namespace hone {

void latent_heads(const Context& context, const LatentHeadsArgs& args) {
  dispatch(context, args, &cpu::latent_heads, HONE_CUDA_OP(latent_heads));
}

void latent_heads_grad(const Context& context, const LatentHeadsGradArgs& args) {
  HONE_ASSERT(args.dk.defined() && args.dv.defined(), "keys and values are both used");
  dispatch(context, args, &cpu::latent_heads_grad, HONE_CUDA_OP(latent_heads_grad));
}

namespace {

struct LatentHeadsNode : Node {
  LatentHeadSizes sizes;

  std::string_view kind() const override { return "latent_heads"; }
  // Its input is not kept either: the projection that computed it is also recomputed.
  RecomputeLevel recomputed_from() const override { return RecomputeLevel::kNorms; }

  void forward(Tape& tape) override {
    latent_heads(tape.context(), {.kv = tape.data(inputs[0]),
                                  .shared = tape.data(inputs[1]),
                                  .k = tape.data(outputs[0]),
                                  .v = tape.data(outputs[1]),
                                  .sizes = sizes});
  }

  void backward(Tape& tape) override {
    latent_heads_grad(tape.context(), {.dk = tape.grad(outputs[0]),
                                       .dv = tape.grad(outputs[1]),
                                       .dkv = tape.grad_dest(inputs[0]),
                                       .dshared = tape.grad_dest(inputs[1]),
                                       .sizes = sizes});
  }
};

}  // namespace

KeysAndValues latent_heads(Tape& tape, Var kv, Var shared, const LatentHeadSizes& sizes) {
  const int64_t tokens = tape.shape(kv)[0];
  HONE_ASSERT(tape.shape(kv) == (Shape{tokens, sizes.kv_width()}));
  HONE_ASSERT(tape.shape(shared) == (Shape{tokens, sizes.rope_dim}) && tape.dtype(shared) == tape.dtype(kv));
  auto node = std::make_unique<LatentHeadsNode>();
  node->sizes = sizes;
  node->inputs = {kv, shared};
  KeysAndValues result;
  result.k = tape.add_output(*node, {tokens, sizes.k_width()}, tape.dtype(kv));
  result.v = tape.add_output(*node, {tokens, sizes.v_width()}, tape.dtype(kv));
  tape.record(std::move(node));
  return result;
}

}  // namespace hone
