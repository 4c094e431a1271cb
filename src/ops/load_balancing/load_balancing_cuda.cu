#include "core/stream/cuda_launch.h"
#include "ops/cast/cast.h"
#include "ops/load_balancing/load_balancing.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 512;

/// A single CTA: the sums have L · E values, and aux is added in a fixed order.
__global__ void __launch_bounds__(kThreads)
    finish_kernel(const float* counts, const float* prob_sum, int64_t layers, int64_t experts, double rows,
                  float* fractions, LossTotals* totals, const StepScalars* scalars) {
  __shared__ double partial[kThreads / 32];
  double aux = 0.0;
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) {
    double count = 0.0, prob = 0.0;
    for (int64_t l = 0; l < layers; ++l) {
      count += static_cast<double>(counts[l * experts + e]);
      prob += static_cast<double>(prob_sum[l * experts + e]);
    }
    fractions[e] = static_cast<float>(count / rows);
    aux += (count / rows) * (prob / rows);
  }
  aux = block_sum<kThreads>(aux, partial);
  if (threadIdx.x == 0) totals->aux_loss += static_cast<double>(experts) * aux * scalars->token_share;
}

}  // namespace

void start_load_balancing(const Context& context, const RoutingMeasurements& measurements) {
  for (const Tensor& tensor : {measurements.counts, measurements.prob_sum, measurements.token_sums}) {
    cuda::fill_zero(context, tensor);
  }
}

void finish_load_balancing(const Context& context, const LoadBalancingArgs& args) {
  if (context.dry()) return;
  const int64_t layers = args.counts.shape[0], experts = args.counts.shape[1];
  finish_kernel<<<1, kThreads, 0, stream_of(context)>>>(elements<float>(args.counts), elements<float>(args.prob_sum),
                                                        layers, experts,
                                                        static_cast<double>(layers) * static_cast<double>(args.tokens),
                                                        elements<float>(args.fractions), args.totals, args.scalars);
  check_launch("finishing load balancing");
}

}  // namespace hone::cuda
