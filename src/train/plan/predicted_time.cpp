#include "train/plan/predicted_time.h"

#include <algorithm>

namespace hone {

namespace {

/// Shares of the data sheet that long documents and full batches reach on an H200: of products, of memory, of copies
/// between pinned memory and the GPU.
constexpr double kProducts = 0.6, kMemory = 0.7, kLink = 0.8;

}  // namespace

double predicted_seconds(const MemoryPlan& plan, const GpuModel& gpu) {
  const double flops = 1e12 * kProducts * (plan.float32 ? gpu.f32_tflops : gpu.bf16_tflops);
  const auto computed = [&](const NodeWork& work) {
    return work.flops / flops + work.bytes / (1e9 * kMemory * gpu.memory_gbs);
  };
  const auto copied = [&](int64_t bytes) { return static_cast<double>(bytes) / (1e9 * kLink * gpu.link_gbs); };
  const int64_t weights = std::min(plan.parameters.host - plan.parameters.on_host, plan.parameters.weights);
  return std::max(computed(plan.work.forward), copied(std::max(plan.host_activations, weights))) +
         std::max(computed(plan.work.backward) + computed(plan.work.recompute),
                  copied(plan.host_activations + weights));
}

}  // namespace hone
