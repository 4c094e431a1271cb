#include "kernels/cuda/rows/chunk_sums_cuda.h"

#include "core/stream/cuda_launch.h"

namespace hone::cuda {

namespace {

constexpr int kColumns = 32, kLines = 32, kMaxDestinations = 3;

struct Destinations {
  struct {
    float* dst;
    int64_t end;  // end of its columns
    bool accumulate;
  } list[kMaxDestinations];
};

/// Line l of a CTA adds chunks l, l + kLines, … of its columns; then one line adds those sums.
__global__ void __launch_bounds__(kColumns* kLines)
    sum_kernel(const float* partial, int64_t chunks, int64_t columns, const Destinations destinations) {
  __shared__ float sums[kLines][kColumns];
  const int64_t column = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  float sum = 0.0f;
  if (column < columns) {
#pragma unroll 8
    for (int64_t c = threadIdx.y; c < chunks; c += kLines) sum += partial[c * columns + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  sum = 0.0f;
#pragma unroll
  for (int line = 0; line < kLines; ++line) sum += sums[line][threadIdx.x];
  int64_t begin = 0;
#pragma unroll
  for (const auto& destination : destinations.list) {
    if (column >= begin && column < destination.end) {
      float& dst = destination.dst[column - begin];
      dst = destination.accumulate ? dst + sum : sum;
    }
    begin = destination.end;
  }
}

}  // namespace

void sum_chunks(const Context& context, const Tensor& partial, std::initializer_list<GradDest> destinations) {
  HONE_ASSERT(destinations.size() <= kMaxDestinations);
  Destinations table{};
  int64_t columns = 0;
  size_t i = 0;
  for (const GradDest& destination : destinations) {
    columns += destination.dst.numel();
    table.list[i++] = {elements<float>(destination.dst), columns, destination.beta != 0.0f};
  }
  HONE_ASSERT(partial.shape[1] == columns);
  if (context.dry() || columns == 0) return;
  sum_kernel<<<blocks_for(columns, kColumns), dim3(kColumns, kLines), 0, stream_of(context)>>>(
      elements<float>(partial), partial.shape[0], columns, table);
  check_launch("adding up chunks");
}

}  // namespace hone::cuda
