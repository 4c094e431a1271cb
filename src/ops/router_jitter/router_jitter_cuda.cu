#include "core/stream/cuda_launch.h"
#include "ops/router_jitter/router_jitter.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;

/// A thread processes four features of a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    jitter_kernel(const T* x, T* y, bool accumulate, int64_t rows, int64_t hidden, float noise, uint32_t layer,
                  const StepScalars* scalars, const int64_t* sample_ids, const int32_t* positions) {
  const int64_t groups = (hidden + 3) / 4, index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = index / groups, group = index - row * groups;
  if (row >= rows) return;
  const auto factors = router_jitter_factors(router_jitter_key(scalars->seed, layer), noise, sample_ids[row],
                                             positions[row], static_cast<uint32_t>(group));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (group * 4 + i >= hidden) return;
    const int64_t at = row * hidden + group * 4 + i;
    const float value = to_float(x[at]) * factors[i];
    y[at] = from_float<T>(accumulate ? value + to_float(y[at]) : value);
  }
}

}  // namespace

void router_jitter(const Context& context, const RouterJitterArgs& args) {
  const int64_t rows = args.x.shape[0], hidden = args.x.shape[1], threads = rows * ((hidden + 3) / 4);
  if (context.dry() || threads == 0) return;
  const RouterJitter& jitter = args.jitter;
  cuda::dispatch_float(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    jitter_kernel<T><<<blocks_for(threads, kThreads), kThreads, 0, stream_of(context)>>>(
        elements<T>(args.x), elements<T>(args.y), args.beta != 0.0f, rows, hidden, jitter.noise, jitter.layer,
        jitter.rows.scalars, elements<int64_t>(jitter.rows.sample_ids), elements<int32_t>(jitter.rows.positions));
  });
  check_launch("jittering a router's input");
}

}  // namespace hone::cuda
