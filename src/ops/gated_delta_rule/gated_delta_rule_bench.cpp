#include <fmt/format.h>

#include "kernels/op_bench.h"
#include "ops/gated_delta_rule/gated_delta_rule.h"
#include "ops/packed_bench.h"

namespace hone {

namespace {

OpCase rule_over_documents(BenchData& data) {
  const BenchSizes& sizes = data.sizes;
  const DeltaHeads heads{.num_key_heads = sizes.delta.key_heads,
                         .num_value_heads = sizes.delta.value_heads,
                         .key_dim = sizes.delta.key_dim,
                         .value_dim = sizes.delta.value_dim};
  const int64_t out = heads.num_value_heads * heads.value_dim;
  const auto qkv = data.input(heads.width()), a = data.input(heads.num_value_heads),
             b = data.input(heads.num_value_heads);
  Weight& a_log = data.weight({heads.num_value_heads}, sizes.dtype, true);
  Weight& dt_bias = data.weight({heads.num_value_heads}, sizes.dtype, true);
  const PackedSequences sequences = packed_documents(data);
  // Per token and value head, products with a chunk's other tokens: k·k, q·k, T k, T v, P v; and with the state: W S, q
  // S, k V. Backward repeats both scans and has eleven more of the former and three of the latter.
  const auto state = static_cast<double>(heads.key_dim * heads.value_dim);
  const double chunk = static_cast<double>(kDeltaChunk) * static_cast<double>(heads.key_dim);
  const double pairs = 2.0 * static_cast<double>(sizes.tokens * heads.num_value_heads);
  const double bytes = sizes.bytes(heads.width() + out);
  const std::string shape = fmt::format("{} × {}, {} / {} heads of {}", sequences.num_documents, sizes.seq,
                                        heads.num_key_heads, heads.num_value_heads, heads.key_dim);
  OpCase result;
  result.parts = {{.name = "gated_delta_rule",
                   .shape = shape,
                   .span = "gated_delta_rule",
                   .pass = "forward",
                   .bytes = bytes,
                   .flops = pairs * (5 * chunk + 3 * state)},
                  {.name = "gated_delta_rule grad",
                   .shape = shape,
                   .span = "gated_delta_rule",
                   .pass = "backward",
                   .bytes = 2 * bytes,
                   .flops = pairs * (16 * chunk + 8 * state)}};
  result.record = [=, &a_log, &dt_bias](Tape& tape) {
    return gated_delta_rule(tape, {qkv(tape), a(tape), b(tape), &a_log, &dt_bias}, heads, sequences);
  };
  result.gradient = data.activations(out);
  return result;
}

}  // namespace

void gated_delta_rule_cases(OpCases& cases) {
  if (cases.sizes.delta.value_heads == 0) return;
  cases.add(OpGroup::kAttention, {"gated_delta_rule", "gated_delta_rule grad"}, rule_over_documents);
}

}  // namespace hone
