#include "core/thread_pool.h"
#include "ops/add/add.h"

namespace hone::cpu {

void add(const Context& context, const AddArgs& args) {
  context.launch([args](ThreadPool& pool) {
    dispatch_float(args.y.dtype, [&](auto element) {
      using T = decltype(element);
      const T* a = args.a.as<T>();
      const T* b = args.b.defined() ? args.b.as<T>() : nullptr;
      T* y = args.y.as<T>();
      const bool accumulate = args.beta != 0.0f;
      const float scale_a = b ? 1.0f : args.scale, scale_b = args.scale;
      pool.parallel_ranges(args.y.numel(), 16384, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          float sum = scale_a * static_cast<float>(a[i]);
          if (b) sum += static_cast<float>(T(scale_b * static_cast<float>(b[i])));
          if (accumulate) sum += static_cast<float>(y[i]);
          y[i] = T(sum);
        }
      });
    });
  });
}

}  // namespace hone::cpu
