#include "kernels/op_bench.h"
#include "ops/gated_rms_norm/gated_rms_norm.h"

namespace hone {

namespace {

OpCase of_heads(BenchData& data) {
  const BenchSizes& sizes = data.sizes;
  const int64_t width = sizes.delta.value_heads * sizes.delta.value_dim;
  const auto x = data.input(width), z = data.input(width);
  Weight& w = data.weight({sizes.delta.value_dim}, sizes.dtype, true);
  OpCase result;
  result.parts = {{"gated_rms_norm", sizes.shape(width), "gated_rms_norm", "forward", 3 * sizes.bytes(width)},
                  {"gated_rms_norm grad", sizes.shape(width), "gated_rms_norm", "backward", 5 * sizes.bytes(width)}};
  result.record = [=, &w](Tape& tape) { return gated_rms_norm(tape, x(tape), z(tape), w, 1e-6f); };
  result.gradient = data.activations(width);
  return result;
}

}  // namespace

void gated_rms_norm_cases(OpCases& cases) {
  if (cases.sizes.delta.value_heads == 0) return;
  cases.add(OpGroup::kMemoryBound, {"gated_rms_norm", "gated_rms_norm grad"}, of_heads);
}

}  // namespace hone
