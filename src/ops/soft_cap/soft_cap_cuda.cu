#include "core/stream/cuda_launch.h"
#include "ops/soft_cap/soft_cap.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) soft_cap_kernel(const T* x, T* y, float cap, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) y[i] = from_float<T>(cap * tanhf(to_float(x[i]) / cap));
}

}  // namespace

void soft_cap(const Context& context, const SoftCapArgs& args) {
  const int64_t count = args.x.numel();
  if (context.dry() || count == 0) return;
  cuda::dispatch_float(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    soft_cap_kernel<T><<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(
        elements<T>(args.x), elements<T>(args.y), args.cap, count);
  });
  check_launch("capping");
}

}  // namespace hone::cuda
