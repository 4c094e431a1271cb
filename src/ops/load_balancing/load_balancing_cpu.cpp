#include <algorithm>

#include "ops/load_balancing/load_balancing.h"

namespace hone::cpu {

void start_load_balancing(const Context& context, const RoutingMeasurements& measurements) {
  context.launch([measurements](ThreadPool&) {
    for (const Tensor& t : {measurements.counts, measurements.prob_sum, measurements.token_sums}) {
      std::fill_n(t.as<float>(), t.numel(), 0.0f);
    }
  });
}

void finish_load_balancing(const Context& context, const LoadBalancingArgs& args) {
  context.launch([args](ThreadPool&) {
    const int64_t layers = args.counts.shape[0], experts = args.counts.shape[1];
    const double rows = static_cast<double>(layers) * static_cast<double>(args.tokens);
    double aux = 0.0;
    for (int64_t e = 0; e < experts; ++e) {
      double count = 0.0, prob = 0.0;
      for (int64_t l = 0; l < layers; ++l) {
        count += static_cast<double>(args.counts.as<float>()[l * experts + e]);
        prob += static_cast<double>(args.prob_sum.as<float>()[l * experts + e]);
      }
      args.fractions.as<float>()[e] = static_cast<float>(count / rows);
      aux += (count / rows) * (prob / rows);
    }
    args.totals->aux_loss += static_cast<double>(experts) * aux * args.scalars->token_share;
  });
}

}  // namespace hone::cpu
