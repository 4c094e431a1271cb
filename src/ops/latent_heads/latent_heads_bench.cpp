#include "kernels/op_bench.h"
#include "ops/latent_heads/latent_heads.h"
#include "ops/start_gradient.h"

namespace hone {

namespace {

OpCase assemble(BenchData& data) {
  const BenchSizes& sizes = data.sizes;
  const LatentHeadSizes heads{.heads = sizes.heads,
                              .nope_dim = sizes.latent.nope_dim,
                              .rope_dim = sizes.latent.rope_dim,
                              .v_dim = sizes.v_head_dim};
  const auto kv = data.input(heads.kv_width()), shared = data.input(heads.rope_dim);
  const Tensor dk = data.activations(heads.k_width());
  const double bytes = sizes.bytes(heads.kv_width() + heads.rope_dim + heads.k_width() + heads.v_width());
  const std::string shape = sizes.shape(heads.k_width() + heads.v_width());
  OpCase result;
  result.parts = {{"latent_heads", shape, "latent_heads", "forward", bytes},
                  {"latent_heads grad", shape, "latent_heads", "backward", bytes}};
  result.record = [=](Tape& tape) {
    const auto [k, v] = latent_heads(tape, kv(tape), shared(tape), heads);
    StartGradient::record(tape, k, dk);
    return v;
  };
  result.gradient = data.activations(heads.v_width());
  return result;
}

}  // namespace

void latent_heads_cases(OpCases& cases) {
  if (cases.sizes.latent.kv_rank == 0) return;
  cases.add(OpGroup::kMemoryBound, {"latent_heads", "latent_heads grad"}, assemble);
}

}  // namespace hone
