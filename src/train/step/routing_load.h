// Measurements of the routers of a step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace hone {

/// Measurements of L MoE layers and E experts.
struct RoutingLoad {
  int64_t layers = 0, experts = 0;
  std::vector<float> counts = {};   ///< [L, E] choices of each expert
  std::vector<float> entropy = {};  ///< [L] mean entropy of the router's distribution, nats
  std::vector<float> z_loss = {};   ///< [L] mean of (log Σ exp(logits))², not scaled by its coefficient

  /// Mean over the layers; 0 without layers.
  double mean_z_loss() const {
    return std::accumulate(z_loss.begin(), z_loss.end(), 0.0) / static_cast<double>(std::max<int64_t>(layers, 1));
  }
};

}  // namespace hone
