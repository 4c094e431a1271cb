#include <cmath>

#include "core/cpu/thread_pool.h"
#include "ops/clamp/clamp.h"

namespace hone::cpu {

namespace {

constexpr int64_t kGrain = 16384;

}  // namespace

void clamp(const Context& context, const ClampArgs& args) {
  context.launch([args](ThreadPool& pool) {
    dispatch_float(args.x.dtype, [&](auto element) {
      using T = decltype(element);
      const T* x = args.x.as<T>();
      T* y = args.y.as<T>();
      const auto limit = static_cast<float>(T(args.limit));
      pool.parallel_ranges(args.x.numel(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const float value = static_cast<float>(x[i]);
          y[i] = T(std::abs(value) > limit ? std::copysign(limit, value) : value);
        }
      });
    });
  });
}

void clamp_grad(const Context& context, const ClampGradArgs& args) {
  context.launch([args](ThreadPool& pool) {
    dispatch_float(args.x.dtype, [&](auto element) {
      using T = decltype(element);
      const T* x = args.x.as<T>();
      const T* dy = args.dy.as<T>();
      T* dx = args.dx.dst.as<T>();
      const auto limit = static_cast<float>(T(args.limit));
      const bool accumulate = args.dx.beta != 0.0f;
      pool.parallel_ranges(args.x.numel(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const float gradient = std::abs(static_cast<float>(x[i])) > limit ? 0.0f : static_cast<float>(dy[i]);
          dx[i] = T(accumulate ? gradient + static_cast<float>(dx[i]) : gradient);
        }
      });
    });
  });
}

}  // namespace hone::cpu
