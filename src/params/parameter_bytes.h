// ParameterBytes: what parameters, gradients and the optimizer's state take.
#pragma once

#include <cstdint>

namespace hone {

/// Bytes by kind; device memory, except the last three.
struct ParameterBytes {
  int64_t weights = 0, master = 0, gradients = 0, moments = 0;
  int64_t host = 0;     ///< the share of all these in host memory (Offload, RankShare::host_expert_layers)
  int64_t on_host = 0;  ///< the part of `host` that is used there: ordinary memory, not pinned
  int64_t shared = 0;   ///< the part of `on_host` that is this rank's share of memory that its host has once

  int64_t total() const { return weights + master + gradients + moments; }
  ParameterBytes& operator+=(const ParameterBytes& other) {
    weights += other.weights;
    master += other.master;
    gradients += other.gradients;
    moments += other.moments;
    host += other.host;
    on_host += other.on_host;
    shared += other.shared;
    return *this;
  }
};

}  // namespace hone
