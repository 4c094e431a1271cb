#include "kernels/op_bench.h"
#include "ops/add/add.h"

namespace hone {

namespace {

OpCase sum(BenchData& data) {
  const int64_t width = data.sizes.hidden;
  const auto a = data.input(width), b = data.input(width);
  OpCase result;
  result.parts = {{"add", data.sizes.shape(width), "add", "forward", 3 * data.sizes.bytes(width)}};
  result.record = [=](Tape& tape) { return add(tape, a(tape), b(tape)); };
  result.gradient = data.activations(width);
  return result;
}

}  // namespace

void add_cases(OpCases& cases) {
  cases.add(OpGroup::kMemoryBound, {"add"}, sum);
  cases.add_decode(OpGroup::kMemoryBound, "add", sum);
}

}  // namespace hone
