#include "kernels/cuda/rows/vectors_cuda.h"
#include "ops/gather_rows/gather_rows.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;

/// One warp copies a row of `units` Units, for any element type.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const Unit* x, const int32_t* rows, Unit* y, int64_t count, int64_t units) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= count) return;
  const Unit* from = x + rows[row] * units;
  Unit* to = y + row * units;
#pragma unroll 4
  for (int64_t i = threadIdx.x % 32; i < units; i += 32) to[i] = from[i];
}

}  // namespace

void gather_rows(const Context& context, const GatherRowsArgs& args) {
  const int64_t count = args.rows.numel(), bytes = args.x.shape[1] * static_cast<int64_t>(size_of(args.x.dtype));
  if (context.dry() || count == 0 || bytes == 0) return;
  const auto launch = [&](auto unit) {
    using Unit = decltype(unit);
    gather_kernel<<<blocks_for(count, kThreads / 32), kThreads, 0, stream_of(context)>>>(
        reinterpret_cast<const Unit*>(args.x.data), elements<int32_t>(args.rows), reinterpret_cast<Unit*>(args.y.data),
        count, bytes / static_cast<int64_t>(sizeof(Unit)));
  };
  const bool vectors =
      !context.stream().general_kernels() && allows_vectors(args.x, bytes, 16) && allows_vectors(args.y, bytes, 16);
  if (vectors) {
    launch(uint4{});
  } else {
    launch(uint16_t{});  // float32 and bfloat16 are multiples of 2 bytes
  }
  check_launch("gathering rows");
}

}  // namespace hone::cuda
