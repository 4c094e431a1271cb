// Adds partial sums, or the rows of a matrix, in a fixed order. Memory-bound.
#include "kernels/cuda/low_rank/partial_sums_cuda.h"

#include "core/stream/cuda_launch.h"

namespace hone::cuda {

namespace {

__global__ void add_parts_kernel(const float* parts, int64_t count, int64_t rows, int64_t columns, float alpha,
                                 float beta, float* sum, bool transposed) {
  const int64_t size = rows * columns;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= size) return;
  float value = 0.0f;
  for (int64_t part = 0; part < count; ++part) value += parts[part * size + index];
  const int64_t row = index / columns;
  float* to = sum + (transposed ? (index - row * columns) * rows + row : index);
  *to = alpha * value + (beta != 0.0f ? *to : 0.0f);
}

/// A CTA has 32 threads across, each with kWidth columns, and 8 down the rows of its part.
constexpr int kAcross = 32, kDown = 8;

template <int kWidth, class T>
__global__ void __launch_bounds__(kAcross* kDown)
    sum_over_rows_kernel(const T* values, int64_t rows, int64_t columns, float* parts) {
  struct alignas(kWidth * sizeof(T)) Group {
    T values[kWidth];
  };
  const int across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kAcross + across) * kWidth;
  const int64_t rows_of_part = (rows + gridDim.y - 1) / gridDim.y;
  const int64_t begin = blockIdx.y * rows_of_part, end = min(begin + rows_of_part, rows);
  float sums[kWidth] = {};
  if (column < columns) {
#pragma unroll 4
    for (int64_t row = begin + down; row < end; row += kDown) {
      const auto group = *reinterpret_cast<const Group*>(values + row * columns + column);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sums[i] += to_float(group.values[i]);
    }
  }
  __shared__ float shared[kDown][kAcross * kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) shared[down][i * kAcross + across] = sums[i];
  __syncthreads();
  if (down != 0 || column >= columns) return;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    float sum = 0.0f;
    for (int other = 0; other < kDown; ++other) sum += shared[other][i * kAcross + across];
    parts[blockIdx.y * columns + column + i] = sum;
  }
}

}  // namespace

void add_parts(const Context& context, const Tensor& parts, float alpha, const GradDest& sum, bool transposed) {
  const int64_t rows = parts.shape[1], columns = parts.shape[2];
  if (context.dry() || rows * columns == 0) return;
  constexpr int kThreads = 256;
  add_parts_kernel<<<blocks_for(rows * columns, kThreads), kThreads, 0, stream_of(context)>>>(
      elements<float>(parts), parts.shape[0], rows, columns, alpha, sum.beta, elements<float>(sum.dst), transposed);
  check_launch("adding partial sums");
}

void sum_over_rows(const Context& context, const Tensor& rows, const GradDest& sum) {
  const int64_t count = rows.shape[0], columns = rows.shape[1];
  if (columns == 0) return;
  const int width = columns % 8 == 0 ? static_cast<int>(16 / size_of(rows.dtype)) : 1;
  const int64_t blocks = (columns + kAcross * width - 1) / (kAcross * width);
  const int64_t parts = parts_of(count, blocks, 4 * kDown);
  ArenaScope scratch(context.scratch());
  const Tensor partial = scratch.take({parts, 1, columns}, DType::kF32);
  if (context.dry()) return;
  cuda::dispatch_float(rows.dtype, [&](auto element) {
    using T = decltype(element);
    HONE_ASSERT(width == 1 || reinterpret_cast<uintptr_t>(rows.data) % 16 == 0);
    const auto kernel = width == 1 ? sum_over_rows_kernel<1, T> : sum_over_rows_kernel<Pack<T>::kSize, T>;
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(parts));
    kernel<<<grid, kAcross * kDown, 0, stream_of(context)>>>(elements<T>(rows), count, columns,
                                                             elements<float>(partial));
    check_launch("summing over rows");
  });
  add_parts(context, partial, 1.0f, sum, false);
}

}  // namespace hone::cuda
