#include "core/stream/cuda_launch.h"
#include "ops/clamp/clamp.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) clamp_kernel(const T* x, T* y, float limit, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const float value = to_float(x[i]), rounded_limit = to_float(from_float<T>(limit));
  y[i] = fabsf(value) > rounded_limit ? from_float<T>(copysignf(rounded_limit, value)) : x[i];
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    clamp_grad_kernel(const T* x, const T* dy, T* dx, bool accumulate, float limit, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const float gradient = fabsf(to_float(x[i])) > to_float(from_float<T>(limit)) ? 0.0f : to_float(dy[i]);
  dx[i] = from_float<T>(accumulate ? gradient + to_float(dx[i]) : gradient);
}

}  // namespace

void clamp(const Context& context, const ClampArgs& args) {
  const int64_t count = args.x.numel();
  if (context.dry() || count == 0) return;
  cuda::dispatch_float(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    clamp_kernel<T><<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(
        elements<T>(args.x), elements<T>(args.y), args.limit, count);
  });
  check_launch("clamping");
}

void clamp_grad(const Context& context, const ClampGradArgs& args) {
  const int64_t count = args.x.numel();
  if (context.dry() || count == 0) return;
  cuda::dispatch_float(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    clamp_grad_kernel<T><<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(
        elements<T>(args.x), elements<T>(args.dy), elements<T>(args.dx.dst), args.dx.beta != 0.0f, args.limit, count);
  });
  check_launch("differentiating a clamp");
}

}  // namespace hone::cuda
