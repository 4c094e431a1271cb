// Adds the partial sums that tiles of columns have written per row, in increasing order, so that results are bitwise
// reproducible.
#include "kernels/cuda/grouped_gemm/partial_dots_cuda.h"

#include "core/stream/cuda_launch.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void add_partial_dots_kernel(const float* partial, const int64_t* used, const int32_t* assignment, float* to,
                                        int64_t rows, int parts) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= *used) return;
  float sum = 0.0f;
  for (int part = 0; part < parts; ++part) sum += partial[part * rows + row];
  to[assignment[row]] = sum;
}

}  // namespace

void add_partial_dots(const Context& context, const Tensor& partial, const Tensor& offsets, const Tensor& assignment,
                      const Tensor& to) {
  const int64_t rows = partial.shape[1];
  if (context.dry() || rows == 0) return;
  add_partial_dots_kernel<<<blocks_for(rows, kThreads), kThreads, 0, stream_of(context)>>>(
      elements<float>(partial), offsets.as<int64_t>() + offsets.numel() - 1, assignment.as<int32_t>(),
      elements<float>(to), rows, static_cast<int>(partial.shape[0]));
  check_launch("adding products of rows");
}

}  // namespace hone::cuda
