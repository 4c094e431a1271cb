#include <algorithm>

#include "core/cpu/thread_pool.h"
#include "ops/router_jitter/router_jitter.h"

namespace hone::cpu {

void router_jitter(const Context& context, const RouterJitterArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RouterJitter& jitter = args.jitter;
    const uint64_t key = router_jitter_key(jitter.rows.scalars->seed, jitter.layer);
    const int64_t hidden = args.x.shape[1];
    dispatch_float(args.x.dtype, [&](auto element) {
      using T = decltype(element);
      pool.parallel_ranges(args.x.shape[0], 8, [&](int64_t row, int64_t end) {
        for (; row < end; ++row) {
          const T* x = args.x.as<T>() + row * hidden;
          T* y = args.y.as<T>() + row * hidden;
          for (int64_t begin = 0; begin < hidden; begin += 4) {
            const auto factors =
                router_jitter_factors(key, jitter.noise, jitter.rows.sample_ids.as<int64_t>()[row],
                                      jitter.rows.positions.as<int32_t>()[row], static_cast<uint32_t>(begin / 4));
            for (int64_t i = begin; i < std::min(hidden, begin + 4); ++i) {
              const float value = static_cast<float>(x[i]) * factors[static_cast<size_t>(i - begin)];
              y[i] = T(args.beta != 0.0f ? value + static_cast<float>(y[i]) : value);
            }
          }
        }
      });
    });
  });
}

}  // namespace hone::cpu
