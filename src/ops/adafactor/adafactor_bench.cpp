#include "ops/adafactor/adafactor.h"

#include "ops/optimizer_bench.h"

namespace hone {

namespace {

OpCase step(BenchData& data) {
  const BenchMatrix matrix(data);
  AdafactorArgs args;
  args.tensors = {{.parameter = matrix.parameter,
                   .working_copy = matrix.working_copy,
                   .rows = data.take({matrix.rows}, DType::kF32),
                   .columns = data.take({matrix.columns}, DType::kF32),
                   .gradient = matrix.gradient}};
  args.scalars = matrix.scalars;
  return matrix.of("adafactor", args, &adafactor, 3 * 4 + 2 * 4);
}

}  // namespace

void adafactor_cases(OpCases& cases) { cases.add(OpGroup::kOptimizer, {"adafactor"}, step); }

}  // namespace hone
