#include "kernels/op_bench.h"
#include "ops/qk_norm_rope/qk_norm_rope.h"
#include "ops/qk_norm_rope/rope_table.h"

namespace hone {

namespace {

OpCase norm_and_turn(BenchData& data, int64_t heads) {
  const BenchSizes& sizes = data.sizes;
  const int64_t width = heads * sizes.head_dim, half = sizes.rotary_dim / 2;
  const auto x = data.input(width);
  Weight* norm = sizes.qk_norm ? &data.weight({sizes.head_dim}, sizes.dtype, true) : nullptr;
  const RopeParameters rope{.rotary_dim = sizes.rotary_dim, .max_position_embeddings = sizes.seq};
  RopeTableValues values = rope_table_values(rope_frequencies(rope, sizes.seq), sizes.seq);
  const RopeTable table{.cos = data.upload({sizes.seq, half}, std::move(values.cos)),
                        .sin = data.upload({sizes.seq, half}, std::move(values.sin))};
  std::vector<int32_t> rows(static_cast<size_t>(sizes.tokens));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(static_cast<int64_t>(i) % sizes.seq);
  const Tensor positions = data.upload({sizes.tokens}, std::move(rows));
  RotaryLayout layout;
  if (sizes.latent.kv_rank > 0) layout = {.offset = sizes.latent.nope_dim, .interleaved = sizes.latent.interleaved};
  OpCase result;
  result.parts = {{"qk_norm_rope", sizes.shape(width), "qk_norm_rope", "forward", 2 * sizes.bytes(width)},
                  {"qk_norm_rope grad", sizes.shape(width), "qk_norm_rope", "backward", 3 * sizes.bytes(width)}};
  result.record = [=, head_dim = sizes.head_dim](Tape& tape) {
    return qk_norm_rope(tape, x(tape), norm, 1e-6f, table, positions, head_dim, layout);
  };
  result.gradient = data.activations(width);
  return result;
}

}  // namespace

void qk_norm_rope_cases(OpCases& cases) {
  if (cases.sizes.rotary_dim == 0) return;
  const BenchSizes& sizes = cases.sizes;
  const auto of = [](int64_t heads) { return [heads](BenchData& data) { return norm_and_turn(data, heads); }; };
  cases.add(OpGroup::kMemoryBound, {"qk_norm_rope", "qk_norm_rope grad"}, of(sizes.heads));
  cases.add_decode(OpGroup::kMemoryBound, "qk_norm_rope", of(sizes.heads));
  cases.add_decode(OpGroup::kMemoryBound, "qk_norm_rope of keys", of(sizes.kv_heads));
}

}  // namespace hone
