#include "ops/load_balancing/load_balancing.h"

#include "kernels/device_dispatch.h"

namespace hone {

void start_load_balancing(const Context& context, const RoutingMeasurements& measurements) {
  dispatch(context, measurements, &cpu::start_load_balancing, HONE_CUDA_OP(start_load_balancing));
}

void finish_load_balancing(const Context& context, const LoadBalancingArgs& args) {
  HONE_ASSERT(args.counts.shape.rank() == 2 && args.counts.shape == args.prob_sum.shape);
  HONE_ASSERT(args.fractions.shape == Shape{args.counts.shape[1]} && args.tokens > 0);
  HONE_ASSERT(args.totals != nullptr && args.scalars != nullptr);
  dispatch(context, args, &cpu::finish_load_balancing, HONE_CUDA_OP(finish_load_balancing));
}

}  // namespace hone
