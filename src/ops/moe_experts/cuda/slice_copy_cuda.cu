// Copies between stacks of adapters' matrices, vectorised along rows or transposed through shared memory. Fast compared
// to the products.
#include "ops/moe_experts/cuda/slice_copy_cuda.h"

#include "core/stream/cuda_launch.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;

/// kWidth consecutive elements per thread.
template <class S, class D, int kWidth>
__global__ void __launch_bounds__(kThreads) copy_kernel(SliceCopy copy, const S* src, D* dst) {
  struct alignas(sizeof(S) * kWidth) From {
    S values[kWidth];
  };
  struct alignas(sizeof(D) * kWidth) To {
    D values[kWidth];
  };
  // 32 bits: 64-bit divisions would take longer than the copy.
  const unsigned at = blockIdx.x * kThreads + threadIdx.x, groups = static_cast<unsigned>(copy.columns) / kWidth;
  if (at >= static_cast<unsigned>(copy.rows) * groups) return;
  const int64_t e = blockIdx.y, x = at / groups, y = at % groups * kWidth;
  const From from = *reinterpret_cast<const From*>(src + e * copy.from.expert + x * copy.from.row + y);
  To& to = *reinterpret_cast<To*>(dst + e * copy.to.expert + x * copy.to.row + y);
  To result;
  if (copy.adds) result = to;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float value = copy.scale * to_float(from.values[i]);
    result.values[i] = from_float<D>(copy.adds ? value + to_float(result.values[i]) : value);
  }
  to = result;
}

constexpr int kSide = 32;

/// If rows of src are contiguous: transposes tiles of 32 x 32 in shared memory.
template <class S, class D>
__global__ void __launch_bounds__(kThreads) transpose_kernel(SliceCopy copy, const S* src, D* dst) {
  __shared__ float tile[kSide][kSide + 1];
  const int lane = static_cast<int>(threadIdx.x) % kSide, line = static_cast<int>(threadIdx.x) / kSide;
  const int64_t e = blockIdx.z, first_x = int64_t{blockIdx.x} * kSide, first_y = int64_t{blockIdx.y} * kSide;
  for (int y = line; y < kSide; y += kThreads / kSide) {
    if (first_y + y >= copy.columns || first_x + lane >= copy.rows) continue;
    tile[y][lane] =
        to_float(src[e * copy.from.expert + (first_x + lane) * copy.from.row + (first_y + y) * copy.from.column]);
  }
  __syncthreads();
  for (int x = line; x < kSide; x += kThreads / kSide) {
    if (first_y + lane >= copy.columns || first_x + x >= copy.rows) continue;
    D& to = dst[e * copy.to.expert + (first_x + x) * copy.to.row + first_y + lane];
    const float value = copy.scale * tile[lane][x];
    to = from_float<D>(copy.adds ? value + to_float(to) : value);
  }
}

bool takes_vectors(const SliceCopy& copy, int64_t from_at, int64_t to_at) {
  for (int64_t value : {copy.columns, copy.from.expert, copy.from.row, copy.to.expert, copy.to.row, from_at, to_at}) {
    if (value % 4 != 0) return false;
  }
  return true;
}

template <class S, class D>
void launch(const cudaStream_t stream, const SliceCopy& copy, const S* src, int64_t from_at, D* dst, int64_t to_at) {
  const auto experts = static_cast<unsigned>(copy.experts);
  if (copy.from.column != 1) {
    const dim3 grid(blocks_for(copy.rows, kSide), blocks_for(copy.columns, kSide), experts);
    transpose_kernel<<<grid, kThreads, 0, stream>>>(copy, src + from_at, dst + to_at);
  } else if (takes_vectors(copy, from_at, to_at)) {
    const dim3 grid(blocks_for(copy.rows * copy.columns / 4, kThreads), experts);
    copy_kernel<S, D, 4><<<grid, kThreads, 0, stream>>>(copy, src + from_at, dst + to_at);
  } else {
    const dim3 grid(blocks_for(copy.rows * copy.columns, kThreads), experts);
    copy_kernel<S, D, 1><<<grid, kThreads, 0, stream>>>(copy, src + from_at, dst + to_at);
  }
}

}  // namespace

void copy_slice(const Context& context, const SliceCopy& copy, const Tensor& src, int64_t from_at, const Tensor& dst,
                int64_t to_at) {
  if (context.dry() || copy.experts * copy.rows * copy.columns == 0) return;
  HONE_ASSERT(copy.rows * copy.columns <= INT32_MAX && copy.to.column == 1);
  HONE_ASSERT(copy.from.column == 1 || copy.from.row == 1);
  cuda::dispatch_float(src.dtype, [&](auto from) {
    cuda::dispatch_float(dst.dtype, [&](auto to) {
      launch(stream_of(context), copy, elements<decltype(from)>(src), from_at, elements<decltype(to)>(dst), to_at);
    });
  });
  check_launch("arranging expert adapters");
}

}  // namespace hone::cuda
