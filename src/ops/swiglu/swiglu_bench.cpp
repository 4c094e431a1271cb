#include "kernels/op_bench.h"
#include "ops/swiglu/swiglu.h"

namespace hone {

namespace {

OpCase of_mlp(BenchData& data) {
  const BenchSizes& sizes = data.sizes;
  const int64_t width = sizes.intermediate;
  const auto gate = data.input(width), up = data.input(width);
  OpCase result;
  result.parts = {{"swiglu", sizes.shape(width), "swiglu", "forward", 3 * sizes.bytes(width)},
                  {"swiglu grad", sizes.shape(width), "swiglu", "backward", 5 * sizes.bytes(width)}};
  result.record = [=](Tape& tape) { return swiglu(tape, gate(tape), up(tape)); };
  result.gradient = data.activations(width);
  return result;
}

}  // namespace

void swiglu_cases(OpCases& cases) {
  if (cases.sizes.intermediate > 0) cases.add(OpGroup::kMemoryBound, {"swiglu", "swiglu grad"}, of_mlp);
}

}  // namespace hone
