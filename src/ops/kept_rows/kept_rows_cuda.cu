// Restores rows from 8-bit floats: bound by memory, 3 bytes an element of bfloat16.
#include "formats/fp8.h"
#include "kernels/cuda/rows/vectors_cuda.h"
#include "ops/kept_rows/kept_rows.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kVector = 8;

/// A thread for kVector elements of a row, which are of one group.
template <class T>
__global__ void __launch_bounds__(kThreads)
    restore_kernel(const uint8_t* codes, const float* scales, int64_t rows, int64_t k, T* x) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kVector;
  if (at >= rows * k) return;
  const int64_t row = at / k, group = (at - row * k) / kFp8Block;
  const float scale = scales[group * rows + row];
  const auto words = *reinterpret_cast<const uint2*>(codes + at);
  float values[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const uint32_t code = (i < 4 ? words.x : words.y) >> 8 * (i % 4) & 0xffu;
    values[i] = __fmul_rn(e4m3_value(code), scale);
  }
  store_floats(x + at, values);
}

}  // namespace

void restore_rows(const Context& context, const RestoreRowsArgs& args) {
  const int64_t count = args.x.numel();
  if (context.dry() || count == 0) return;
  HONE_ASSERT(allows_vectors(args.x, args.x.shape[1], kVector) && allows_vectors(args.from.codes, 16, 16));
  cuda::dispatch_float(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    restore_kernel<<<blocks_for(count, kThreads * kVector), kThreads, 0, stream_of(context)>>>(
        elements<uint8_t>(args.from.codes), elements<float>(args.from.scales), args.x.shape[0], args.x.shape[1],
        elements<T>(args.x));
  });
  check_launch("restoring rows from 8-bit floats");
}

}  // namespace hone::cuda
