#include "kernels/cuda/tiers.h"

#include <optional>

#include "core/cuda_queue.h"

namespace hone::cuda {

namespace {

/// Its largest block: two stages of a chunk's operands and the state.
constexpr size_t kDeltaRuleShared = size_t{200} << 10;

}  // namespace

KernelTiers kernel_tiers_of(const GpuProperties& gpu) {
  KernelTiers tiers;
  if (gpu.compute_capability >= 80) {
    tiers.low_rank = Tier::kSm80;
    if (gpu.shared_memory >= kDeltaRuleShared) tiers.delta_rule = Tier::kSm80;
  }
  // wgmma exists on 9.0 and on nothing later.
  if (gpu.compute_capability == 90) {
    tiers.attention = tiers.grouped_gemm = tiers.loss_rows = tiers.matmul_choice = Tier::kSm90;
  }
  return tiers;
}

const KernelTiers& device_tiers(CudaQueue& queue) {
  auto& tiers = queue.state<std::optional<KernelTiers>>();
  if (!tiers) tiers = kernel_tiers_of({queue.compute_capability(), queue.shared_memory()});
  return *tiers;
}

const KernelTiers& kernel_tiers(const Context& context) {
  static const KernelTiers general;
  return context.stream().general_kernels() ? general : device_tiers(context.stream().cuda());
}

}  // namespace hone::cuda
