#include <math_constants.h>

#include "core/stream/cuda_launch.h"
#include "ops/expert_scale/expert_scale.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;

/// The factors of experts, in either dtype.
struct Scale {
  const void* values;
  bool bf16;
  int experts;

  explicit Scale(const Tensor& scale)
      : values(scale.data), bf16(scale.dtype == DType::kBF16), experts(static_cast<int>(scale.numel())) {}
#ifdef __CUDACC__
  __device__ float at(int expert) const {
    if (expert < 0 || expert >= experts) return CUDART_NAN_F;
    return bf16 ? to_float(static_cast<const __nv_bfloat16*>(values)[expert])
                : static_cast<const float*>(values)[expert];
  }
#endif
};

/// y = x · scale of the expert, + y if `accumulate`.
template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_kernel(const T* x, const int32_t* ids, Scale scale, T* y, bool accumulate, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const float value = to_float(x[i]) * scale.at(ids[i]);
  y[i] = from_float<T>(accumulate ? value + to_float(y[i]) : value);
}

/// One CTA for an expert, which reads all choices.
template <class T>
__global__ void __launch_bounds__(kThreads) scale_grad_kernel(const T* weights, const int32_t* ids, const T* dy,
                                                              float* dscale, bool accumulate, int64_t count) {
  __shared__ float partial[kThreads / 32];
  const int expert = static_cast<int>(blockIdx.x);
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    if (ids[i] == expert) sum = fmaf(to_float(dy[i]), to_float(weights[i]), sum);
  }
  sum = block_sum<kThreads>(sum, partial);
  if (threadIdx.x == 0) dscale[expert] = accumulate ? dscale[expert] + sum : sum;
}

}  // namespace

void expert_scale(const Context& context, const ExpertScaleArgs& args) {
  const int64_t count = args.y.numel();
  if (context.dry() || count == 0) return;
  cuda::dispatch_float(args.y.dtype, [&](auto element) {
    using T = decltype(element);
    scale_kernel<T><<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(
        elements<T>(args.weights), elements<int32_t>(args.ids), Scale(args.scale), elements<T>(args.y), false, count);
  });
  check_launch("scaling experts' weights");
}

void expert_scale_grad(const Context& context, const ExpertScaleGradArgs& args) {
  const int64_t count = args.dy.numel();
  if (context.dry()) return;
  cuda::dispatch_float(args.dy.dtype, [&](auto element) {
    using T = decltype(element);
    if (args.dweights.wanted() && count > 0) {
      scale_kernel<T><<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(
          elements<T>(args.dy), elements<int32_t>(args.ids), Scale(args.scale), elements<T>(args.dweights.dst),
          args.dweights.beta != 0.0f, count);
    }
    if (args.dscale.wanted()) {
      scale_grad_kernel<T><<<blocks_for(args.scale.numel(), 1), kThreads, 0, stream_of(context)>>>(
          elements<T>(args.weights), elements<int32_t>(args.ids), elements<T>(args.dy),
          elements<float>(args.dscale.dst), args.dscale.beta != 0.0f, count);
    }
  });
  check_launch("differentiating experts' scales");
}

}  // namespace hone::cuda
