#include <fmt/format.h>

#include <cmath>

#include "kernels/op_bench.h"
#include "ops/attention/attention.h"
#include "ops/packed_bench.h"

namespace hone {

namespace {

OpCase over_documents(BenchData& data) {
  const BenchSizes& sizes = data.sizes;
  const int64_t heads = sizes.heads, kv_heads = sizes.kv_heads, dim = sizes.head_dim, v_dim = sizes.v_head_dim;
  const auto q = data.input(heads * dim), k = data.input(kv_heads * dim), v = data.input(kv_heads * v_dim);
  const AttentionOptions options{.num_heads = heads,
                                 .num_kv_heads = kv_heads,
                                 .head_dim = dim,
                                 .v_head_dim = v_dim,
                                 .scale = 1.0f / std::sqrt(static_cast<float>(dim))};
  const PackedSequences sequences = packed_documents(data);
  const double bytes = sizes.bytes((heads + kv_heads) * (dim + v_dim));
  const std::string head = dim == v_dim ? std::to_string(dim) : fmt::format("{} and {}", dim, v_dim);
  const std::string shape =
      fmt::format("{} × {}, {} / {} heads of {}", sequences.num_documents, sizes.seq, heads, kv_heads, head);
  OpCase result;
  // Backward has five products, forward two.
  result.parts = {{"attention", shape, "attention", "forward", bytes, 1},
                  {"attention grad", shape, "attention", "backward", 2 * bytes, 2.5}};
  result.record = [=](Tape& tape) { return attention(tape, q(tape), k(tape), v(tape), options, sequences); };
  result.gradient = data.activations(heads * v_dim);
  return result;
}

}  // namespace

void attention_cases(OpCases& cases) {
  cases.add(OpGroup::kAttention, {"attention", "attention grad"}, over_documents);
}

}  // namespace hone
