#include "kernels/cuda/rows/vectors_cuda.h"
#include "ops/add/add.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kElements = 8;

/// b and factor may be null; y may be a or b.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kThreads)
    add_kernel(const T* a, const T* b, T* y, bool accumulate, float scale, const float* factor, int64_t count) {
  if (factor != nullptr) scale *= *factor;
  const float scale_a = b == nullptr ? scale : 1.0f;
  const int64_t begin = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElements;
  if (kVectors && begin + kElements <= count) {
    float sum[kElements], values[kElements];
    load_floats(a + begin, sum);
#pragma unroll
    for (int i = 0; i < kElements; ++i) sum[i] *= scale_a;
    if (b != nullptr) {
      load_floats(b + begin, values);
#pragma unroll
      for (int i = 0; i < kElements; ++i) sum[i] += scaled<T>(scale, values[i]);
    }
    if (accumulate) {
      load_floats(y + begin, values);
#pragma unroll
      for (int i = 0; i < kElements; ++i) sum[i] += values[i];
    }
    store_floats(y + begin, sum);
    return;
  }
  for (int64_t i = begin; i < count && i < begin + kElements; ++i) {
    float sum = scale_a * to_float(a[i]);
    if (b != nullptr) sum += scaled<T>(scale, to_float(b[i]));
    if (accumulate) sum += to_float(y[i]);
    y[i] = from_float<T>(sum);
  }
}

}  // namespace

void add(const Context& context, const AddArgs& args) {
  const int64_t count = args.y.numel();
  if (context.dry() || count == 0) return;
  const bool vectors = !context.stream().general_kernels() && allows_vectors(args.a, 0, kElements) &&
                       allows_vectors(args.b, 0, kElements) && allows_vectors(args.y, 0, kElements);
  cuda::dispatch_float(args.y.dtype, [&](auto element) {
    using T = decltype(element);
    const auto kernel = vectors ? &add_kernel<T, true> : &add_kernel<T, false>;
    kernel<<<blocks_for(count, kThreads * kElements), kThreads, 0, stream_of(context)>>>(
        elements<T>(args.a), elements<T>(args.b), elements<T>(args.y), args.beta != 0.0f, args.scale,
        elements<float>(args.factor), count);
  });
  check_launch("adding");
}

}  // namespace hone::cuda
