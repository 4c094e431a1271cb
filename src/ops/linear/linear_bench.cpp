#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "kernels/op_bench.h"
#include "ops/linear/linear.h"

namespace hone {

namespace {

/// y = x Wᵀ. Trained: forward, and the gradients of x and W; frozen: the gradient of x.
OpCase product(BenchData& data, const std::string& name, int64_t in, int64_t out, bool trained) {
  const BenchSizes& sizes = data.sizes;
  const double rows = sizes.bytes(in) + sizes.bytes(out), weights = static_cast<double>(in * out);
  const double size = sizes.element_bytes();
  const std::string shape = fmt::format("[{}, {}] → {}", sizes.tokens, in, out);
  const auto x = data.input(in);
  const Shape of_weight{out, in};
  const bool dense = trained || sizes.fp8.recipe != Fp8Recipe::kOff;
  Weight& w =
      dense ? data.weight(of_weight, sizes.dtype, trained, sizes.fp8) : data.frozen_weight(of_weight, sizes.dtype);
  OpCase result;
  if (trained) {
    result.parts = {{name, shape, "linear", "forward", rows + size * weights, 1},
                    {name + " grad dx dW", shape, "linear", "backward", 2 * rows + (size + 4) * weights, 2}};
  } else {
    result.parts = {{name + " grad dx", shape, "linear", "backward", rows + size * weights, 1}};
  }
  result.record = [=, &w](Tape& tape) { return linear(tape, x(tape), w); };
  result.gradient = data.activations(out);
  return result;
}

/// For decode: one product for each of `outs`, of the same rows.
OpCase forward_of(BenchData& data, int64_t in, const std::vector<int64_t>& outs) {
  const BenchSizes& sizes = data.sizes;
  const Tensor x = data.activations(in);
  std::vector<Weight*> weights;
  OpCase result;
  result.parts = {
      {"", fmt::format("[{}, {}] → {}", sizes.tokens, in, fmt::join(outs, " + ")), "", "", sizes.bytes(in)}};
  for (const int64_t out : outs) {
    weights.push_back(&data.frozen_weight({out, in}, sizes.dtype));
    result.parts[0].bytes += sizes.bytes(out) + sizes.element_bytes() * static_cast<double>(out * in);
  }
  result.record = [x, weights](Tape& tape) {
    const Var input = tape.input(x);
    for (Weight* w : weights) linear(tape, input, *w);
    return Var{};
  };
  return result;
}

}  // namespace

/// The projections of attention, then those of a dense MLP.
void linear_cases(OpCases& cases) {
  const BenchSizes& sizes = cases.sizes;
  const auto add = [&](const std::string& projection, int64_t in, int64_t out) {
    const std::string name = "linear " + projection;
    cases.add(OpGroup::kDense, {name, name + " grad dx dW"},
              [=](BenchData& data) { return product(data, name, in, out, true); });
    cases.add(OpGroup::kDense, {name + " grad dx"},
              [=](BenchData& data) { return product(data, name, in, out, false); });
    cases.add_decode(OpGroup::kDense, name, [=](BenchData& data) { return forward_of(data, in, {out}); });
  };
  const int64_t hidden = sizes.hidden, q_width = sizes.heads * sizes.head_dim, values = sizes.heads * sizes.v_head_dim;
  if (const BenchSizes::Latent& latent = sizes.latent; latent.kv_rank > 0) {
    if (latent.q_rank > 0) add("q_a_proj", hidden, latent.q_rank);
    add(latent.q_rank > 0 ? "q_b_proj" : "q_proj", latent.q_rank > 0 ? latent.q_rank : hidden, q_width);
    add("kv_a_proj_with_mqa", hidden, latent.kv_rank + latent.rope_dim);
    add("kv_b_proj", latent.kv_rank, sizes.heads * latent.nope_dim + values);
  } else {
    add("q_proj", hidden, q_width);
    add("k_proj, v_proj", hidden, sizes.kv_heads * sizes.head_dim);
    cases.add_decode(OpGroup::kDense, "linear q, k and v", [=](BenchData& data) {
      return forward_of(data, hidden, {q_width, sizes.kv_heads * sizes.head_dim, sizes.kv_heads * sizes.v_head_dim});
    });
  }
  add("o_proj", values, hidden);
  if (sizes.intermediate > 0) {
    add("gate_proj, up_proj", hidden, sizes.intermediate);
    add("down_proj", sizes.intermediate, hidden);
  }
  cases.add_decode(OpGroup::kDense, "linear lm_head",
                   [=](BenchData& data) { return forward_of(data, hidden, {sizes.vocab}); });
}

}  // namespace hone
