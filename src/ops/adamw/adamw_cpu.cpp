#include <cmath>

#include "ops/adamw/adamw.h"
#include "ops/row_math/row_blocks.h"

namespace hone::cpu {

namespace {

/// The update of the whole parameter; scalars are computed in float64 and rounded once, as torch does.
AdamwRow whole_row(const AdamwArgs& args, const AdamwTensor& tensor) {
  const StepScalars& step = *args.scalars;
  const double lr = step.learning_rate;
  return {.parameter = tensor.parameter.as<float>(),
          .m = tensor.m.as<float>(),
          .v = tensor.v.as<float>(),
          .gradient = tensor.gradient.as<float>(),
          .gradient_scale = step.clip_coefficient,
          .decay = static_cast<float>(1.0 - lr * tensor.weight_decay),
          .one_minus_beta1 = static_cast<float>(1.0 - args.beta1),
          .beta2 = static_cast<float>(args.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - args.beta2),
          .sqrt_bias_correction2 = static_cast<float>(std::sqrt(static_cast<double>(step.bias_correction2))),
          .eps = static_cast<float>(args.eps),
          .step_size = static_cast<float>(lr / static_cast<double>(step.bias_correction1))};
}

}  // namespace

void adamw(const Context& context, const AdamwArgs& args) {
  context.launch([args](ThreadPool& pool) {
    if (args.scalars->nonfinite != 0) return;
    const RowMath& math = row_math();
    for (const AdamwTensor& tensor : args.tensors) {
      const AdamwRow whole = whole_row(args, tensor);
      parallel_blocks(pool, tensor.parameter.numel(), [&](int64_t begin, int64_t n) {
        AdamwRow block = whole;
        block.parameter += begin;
        block.m += begin;
        block.v += begin;
        block.gradient += begin;
        math.adamw(block, n);
        if (tensor.working_copy.defined()) store_block(math, block.parameter, tensor.working_copy, begin, n);
      });
    }
  });
}

}  // namespace hone::cpu
