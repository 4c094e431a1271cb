#include "kernels/cpu/row_math/rounded_blocks.h"
#include "ops/momentum/momentum_step.h"

namespace hone::cpu {

namespace {

void update_range(const RowMath& math, const MomentumTensor& tensor, const MomentumStep& step, uint64_t key,
                  Range range) {
  float p_buffer[kRowBlock], m_buffer[kRowBlock] = {}, g_buffer[kRowBlock];
  float* const p = load_rounded(math, tensor.parameter, range, p_buffer);
  float* const m = tensor.m.defined() ? load_rounded(math, tensor.m, range, m_buffer) : m_buffer;
  const float* const g = load_block(math, tensor.gradient, range.begin, g_buffer, range.count);
  for (int64_t i = 0; i < range.count; ++i) step.update(p[i], m[i], g[i]);
  if (tensor.m.defined()) store_rounded(math, m, tensor.m, range, key, RoundingUse::kMoments);
  store_rounded(math, p, tensor.parameter, range, key, RoundingUse::kParameter);
  if (tensor.working_copy.defined()) store_block(math, p, tensor.working_copy, range.begin, range.count);
}

}  // namespace

void momentum(const Context& context, const MomentumArgs& args) {
  context.launch([args](ThreadPool& pool) {
    if (args.scalars->nonfinite != 0) return;
    const RowMath& math = row_math();
    for (const MomentumTensor& tensor : args.tensors) {
      const MomentumStep step =
          MomentumStep::of(*args.scalars, args.rule, args.beta1, args.beta2, args.rate_factor, tensor.weight_decay);
      const uint64_t key = mix_key(args.scalars->seed, tensor.stream_id);
      parallel_blocks(pool, tensor.parameter.numel(), [&](int64_t begin, int64_t count) {
        update_range(math, tensor, step, key, {begin, count, tensor.first_element});
      });
    }
  });
}

}  // namespace hone::cpu
