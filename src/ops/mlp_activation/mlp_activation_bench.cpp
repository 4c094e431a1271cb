#include "kernels/op_bench.h"
#include "ops/mlp_activation/mlp_activation.h"

namespace hone {

namespace {

OpCase of_mlp(BenchData& data) {
  const BenchSizes& sizes = data.sizes;
  const MlpActivation function = sizes.activation;
  const int64_t width = sizes.intermediate, operands = function.gated() ? 2 : 1;
  const auto gate = data.input(width), up = data.input(width);
  const std::string name(function.name());
  const double bytes = sizes.bytes(width);
  OpCase result;
  result.parts = {
      {name, sizes.shape(width), name, "forward", static_cast<double>(operands + 1) * bytes},
      {name + " grad", sizes.shape(width), name, "backward", static_cast<double>(2 * operands + 1) * bytes}};
  result.record = [=](Tape& tape) {
    return function.gated() ? mlp_activation(tape, function, gate(tape), up(tape))
                            : mlp_activation(tape, function, gate(tape));
  };
  result.gradient = data.activations(width);
  return result;
}

}  // namespace

void mlp_activation_cases(OpCases& cases) {
  const std::string name(cases.sizes.activation.name());
  if (cases.sizes.intermediate > 0) cases.add(OpGroup::kMemoryBound, {name, name + " grad"}, of_mlp);
}

}  // namespace hone
