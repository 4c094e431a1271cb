#include "kernels/cuda/rows/vectors_cuda.h"
#include "ops/cast/cast.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kElements = 8;

template <class From, class To, bool kVectors>
__global__ void __launch_bounds__(kThreads) cast_kernel(const From* src, To* dst, int64_t count) {
  const int64_t begin = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElements;
  if (kVectors && begin + kElements <= count) {
    float values[kElements];
    load_floats(src + begin, values);
    store_floats(dst + begin, values);
    return;
  }
  for (int64_t i = begin; i < count && i < begin + kElements; ++i) dst[i] = from_float<To>(to_float(src[i]));
}

}  // namespace

void cast(const Context& context, const CastArgs& args) {
  if (args.src.dtype == args.dst.dtype) return cuda::copy(context, args);
  const int64_t count = args.dst.numel();
  if (context.dry() || count == 0) return;
  const bool vectors = !context.stream().general_kernels() && allows_vectors(args.src, 0, kElements) &&
                       allows_vectors(args.dst, 0, kElements);
  cuda::dispatch_float(args.src.dtype, [&](auto from) {
    using From = decltype(from);
    using To = std::conditional_t<sizeof(From) == 2, float, __nv_bfloat16>;
    const auto kernel = vectors ? &cast_kernel<From, To, true> : &cast_kernel<From, To, false>;
    kernel<<<blocks_for(count, kThreads * kElements), kThreads, 0, stream_of(context)>>>(elements<From>(args.src),
                                                                                         elements<To>(args.dst), count);
  });
  check_launch("casting");
}

void copy(const Context& context, const CastArgs& args) {
  if (context.dry() || args.dst.bytes() == 0) return;
  check(cudaMemcpyAsync(args.dst.data, args.src.data, args.dst.bytes(), cudaMemcpyDeviceToDevice, stream_of(context)),
        "copying");
}

void fill_zero(const Context& context, const Tensor& tensor) {
  if (context.dry() || tensor.bytes() == 0) return;
  check(cudaMemsetAsync(tensor.data, 0, tensor.bytes(), stream_of(context)), "clearing memory");
}

}  // namespace hone::cuda
