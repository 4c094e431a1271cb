#include "core/stream/cuda_launch.h"
#include "ops/group_sums/group_sums.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 512;

/// A CTA reads all elements for its group: a batch has few groups, and its losses fit in L2.
__global__ void __launch_bounds__(kThreads)
    group_sums_kernel(const float* values, const float* weights, const int32_t* groups, int64_t count, double* sums) {
  __shared__ double partial[kThreads / 32];
  const auto group = static_cast<int32_t>(blockIdx.x);
  double sum = 0.0, weight = 0.0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    if (groups[i] != group || weights[i] == 0.0f) continue;
    sum += static_cast<double>(weights[i]) * static_cast<double>(values[i]);
    weight += static_cast<double>(weights[i]);
  }
  sum = block_sum<kThreads>(sum, partial);
  __syncthreads();
  weight = block_sum<kThreads>(weight, partial);
  if (threadIdx.x != 0) return;
  sums[2 * blockIdx.x] += sum;
  sums[2 * blockIdx.x + 1] += weight;
}

}  // namespace

void group_sums(const Context& context, const GroupSumsArgs& args) {
  if (context.dry() || args.sums.shape[0] == 0) return;
  group_sums_kernel<<<static_cast<unsigned>(args.sums.shape[0]), kThreads, 0, stream_of(context)>>>(
      elements<float>(args.values), elements<float>(args.weights), elements<int32_t>(args.groups), args.values.numel(),
      elements<double>(args.sums));
  check_launch("group sums");
}

}  // namespace hone::cuda
