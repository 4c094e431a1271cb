#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "ops/random_fill/random_fill.h"

namespace hone::cpu {

namespace {

/// A multiple of the numbers per counter, so that a task starts at a whole counter.
constexpr int64_t kPerTask = int64_t{1} << 16;

}  // namespace

void random_fill(const Context& context, const RandomFillArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const bool normal = args.distribution == Distribution::kNormal;
    const int64_t per_counter = normal ? 2 : 4;
    pool.parallel_ranges(args.dst.numel(), kPerTask, [&](int64_t begin, int64_t end) {
      PhiloxSequence random(args.key, static_cast<uint64_t>(begin / per_counter));
      dispatch_float(args.dst.dtype, [&](auto element) {
        using T = decltype(element);
        T* dst = args.dst.as<T>();
        for (int64_t i = begin; i < end; ++i)
          dst[i] = T(args.scale * (normal ? random.normal() : 2 * random.uniform() - 1));
      });
    });
  });
}

}  // namespace hone::cpu
