#include "kernels/op_bench.h"
#include "ops/rms_norm/rms_norm.h"

namespace hone {

namespace {

OpCase plain(BenchData& data) {
  const BenchSizes& sizes = data.sizes;
  const int64_t width = sizes.hidden;
  const auto x = data.input(width);
  Weight& w = data.weight({width}, sizes.dtype, true);
  OpCase result;
  result.parts = {{"rms_norm", sizes.shape(width), "rms_norm", "forward", 2 * sizes.bytes(width)},
                  {"rms_norm grad", sizes.shape(width), "rms_norm", "backward", 3 * sizes.bytes(width)}};
  result.record = [=, &w](Tape& tape) { return rms_norm(tape, x(tape), w, 1e-6f); };
  result.gradient = data.activations(width);
  return result;
}

OpCase after_sum(BenchData& data) {
  const BenchSizes& sizes = data.sizes;
  const int64_t width = sizes.hidden;
  const auto x = data.input(width), delta = data.input(width);
  Weight& w = data.weight({width}, sizes.dtype, true);
  OpCase result;
  // Both nodes are reported together by the step: the op decides where the sum is computed.
  result.parts = {
      {"add_rms_norm with grad", sizes.shape(width), "step", "", (sizes.decode ? 4 : 9) * sizes.bytes(width)}};
  result.record = [=, &w](Tape& tape) { return add_rms_norm(tape, x(tape), delta(tape), w, 1e-6f).y; };
  result.gradient = data.activations(width);
  return result;
}

}  // namespace

void rms_norm_cases(OpCases& cases) {
  cases.add(OpGroup::kMemoryBound, {"rms_norm", "rms_norm grad"}, plain);
  cases.add(OpGroup::kMemoryBound, {"add_rms_norm with grad"}, after_sum);
  cases.add_decode(OpGroup::kMemoryBound, "rms_norm", plain);
  cases.add_decode(OpGroup::kMemoryBound, "add_rms_norm", after_sum);
}

}  // namespace hone
