#include "ops/momentum/momentum.h"

#include "ops/optimizer_bench.h"

namespace hone {

namespace {

OpCase lion(BenchData& data) {
  const BenchMatrix matrix(data);
  MomentumArgs args;
  args.tensors = {{.parameter = matrix.parameter,
                   .working_copy = matrix.working_copy,
                   .m = data.take({matrix.rows, matrix.columns}, DType::kF32),
                   .gradient = matrix.gradient}};
  args.scalars = matrix.scalars;
  args.rule = MomentumRule::kLion;
  return matrix.of("lion", args, &momentum, 4 + 4 * 4);
}

}  // namespace

void momentum_cases(OpCases& cases) { cases.add(OpGroup::kOptimizer, {"lion"}, lion); }

}  // namespace hone
