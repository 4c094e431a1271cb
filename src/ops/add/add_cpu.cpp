#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/add/add.h"

namespace hone::cpu {

namespace {

/// values = scale · x, rounded to the dtype of x if `rounded`.
const float* load_scaled(const RowMath& math, const Tensor& x, float scale, bool rounded, int64_t begin, float* buffer,
                         int64_t n) {
  const float* values = load_block(math, x, begin, buffer, n);
  if (scale == 1.0f) return values;
  math.scale(scale, values, buffer, n);
  if (rounded && x.dtype == DType::kBF16) math.round(buffer, n);
  return buffer;
}

}  // namespace

void add(const Context& context, const AddArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    const float scale = args.factor.defined() ? args.scale * *args.factor.as<float>() : args.scale;
    parallel_blocks(pool, args.y.numel(), [&](int64_t begin, int64_t n) {
      float a[kRowBlock], other[kRowBlock], sum[kRowBlock];
      const float* terms = load_scaled(math, args.a, args.b.defined() ? 1.0f : scale, false, begin, a, n);
      if (args.b.defined()) {
        math.add(terms, load_scaled(math, args.b, scale, true, begin, other, n), sum, n);
        terms = sum;
      }
      if (args.beta != 0.0f) {
        math.add(terms, load_block(math, args.y, begin, other, n), sum, n);
        terms = sum;
      }
      store_block(math, terms, args.y, begin, n);
    });
  });
}

}  // namespace hone::cpu
