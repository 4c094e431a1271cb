#include "kernels/op_bench.h"
#include "ops/argmax/argmax.h"

namespace hone {

namespace {

OpCase most_probable(BenchData& data) {
  const BenchSizes& sizes = data.sizes;
  const Tensor logits = data.activations(sizes.vocab), ids = data.take({sizes.tokens}, DType::kI32);
  OpCase result;
  result.parts = {{"argmax", sizes.shape(sizes.vocab), "step", "", sizes.bytes(sizes.vocab)}};
  result.record = [=](Tape& tape) {
    argmax(tape.context(), {.x = logits, .ids = ids});
    return Var{};
  };
  return result;
}

}  // namespace

void argmax_cases(OpCases& cases) { cases.add_decode(OpGroup::kMemoryBound, "argmax", most_probable); }

}  // namespace hone
