#include <algorithm>
#include <cmath>

#include "ops/adamw/adamw.h"
#include "ops/adamw/stochastic_rounding.h"
#include "ops/row_math/row_blocks.h"

namespace hone::cpu {

namespace {

/// What all blocks of a tensor share; scalars are computed in float64 and rounded once, as torch does.
AdamwRow row_of(const AdamwArgs& args, const AdamwTensor& tensor) {
  const StepScalars& step = *args.scalars;
  const double lr = step.learning_rate;
  return {.parameter = nullptr,
          .m = nullptr,
          .v = nullptr,
          .gradient = nullptr,
          .gradient_scale = step.clip_coefficient,
          .decay = static_cast<float>(1.0 - lr * tensor.weight_decay),
          .one_minus_beta1 = static_cast<float>(1.0 - args.beta1),
          .beta2 = static_cast<float>(args.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - args.beta2),
          .sqrt_bias_correction2 = static_cast<float>(std::sqrt(static_cast<double>(step.bias_correction2))),
          .eps = static_cast<float>(args.eps),
          .step_size = static_cast<float>(lr / static_cast<double>(step.bias_correction1))};
}

/// Blocks start at multiples of 4.
void store_moments(const AdamwTensor& tensor, uint64_t key, const float* m, const float* v, int64_t begin, int64_t n) {
  auto* const to_m = reinterpret_cast<uint16_t*>(tensor.m.as<BFloat16>() + begin);
  auto* const to_v = reinterpret_cast<uint16_t*>(tensor.v.as<BFloat16>() + begin);
  for (int64_t first = 0; first < n; first += 4) {
    const auto words = moment_words(key, begin + first);
    for (int64_t i = first; i < std::min(n, first + 4); ++i) {
      const uint32_t word = words[static_cast<size_t>(i - first)];
      to_m[i] = stochastic_bf16(m[i], word);
      to_v[i] = stochastic_bf16(v[i], word >> 16);
    }
  }
}

void update(ThreadPool& pool, const AdamwArgs& args, const AdamwTensor& tensor) {
  const RowMath& math = row_math();
  const AdamwRow row = row_of(args, tensor);
  const bool narrow = tensor.m.dtype == DType::kBF16;
  const uint64_t key = narrow ? mix_key(args.scalars->seed, tensor.stream_id) : 0;
  parallel_blocks(pool, tensor.parameter.numel(), [&](int64_t begin, int64_t n) {
    float m[kRowBlock], v[kRowBlock];
    AdamwRow block = row;
    block.parameter = tensor.parameter.as<float>() + begin;
    block.gradient = tensor.gradient.as<float>() + begin;
    block.m = narrow ? m : tensor.m.as<float>() + begin;
    block.v = narrow ? v : tensor.v.as<float>() + begin;
    if (narrow) {
      math.widen(tensor.m.as<BFloat16>() + begin, m, n);
      math.widen(tensor.v.as<BFloat16>() + begin, v, n);
    }
    math.adamw(block, n);
    if (narrow) store_moments(tensor, key, m, v, begin, n);
    if (tensor.working_copy.defined()) store_block(math, block.parameter, tensor.working_copy, begin, n);
  });
}

}  // namespace

void adamw(const Context& context, const AdamwArgs& args) {
  context.launch([args](ThreadPool& pool) {
    if (args.scalars->nonfinite != 0) return;
    for (const AdamwTensor& tensor : args.tensors) update(pool, args, tensor);
  });
}

}  // namespace hone::cpu
