#include "kernels/op_bench.h"
#include "ops/gated_group_norm/gated_group_norm.h"

namespace hone {

namespace {

OpCase of_groups(BenchData& data) {
  const BenchSizes& sizes = data.sizes;
  const int64_t width = sizes.ssd.heads * sizes.ssd.head_dim;
  const auto x = data.input(width), z = data.input(width);
  Weight& w = data.weight({width}, sizes.dtype, true);
  OpCase result;
  result.parts = {
      {"gated_group_norm", sizes.shape(width), "gated_group_norm", "forward", 3 * sizes.bytes(width)},
      {"gated_group_norm grad", sizes.shape(width), "gated_group_norm", "backward", 5 * sizes.bytes(width)}};
  result.record = [=, &w, groups = sizes.ssd.groups](Tape& tape) {
    return gated_group_norm(tape, x(tape), z(tape), w, groups, 1e-6f);
  };
  result.gradient = data.activations(width);
  return result;
}

}  // namespace

void gated_group_norm_cases(OpCases& cases) {
  if (cases.sizes.ssd.heads == 0) return;
  cases.add(OpGroup::kMemoryBound, {"gated_group_norm", "gated_group_norm grad"}, of_groups);
}

}  // namespace hone
