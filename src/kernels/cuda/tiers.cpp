#include "kernels/cuda/tiers.h"

#include <algorithm>
#include <optional>

#include "core/cuda/cuda_queue.h"

namespace hone::cuda {

namespace {

/// Maximum bytes per CTA on every GPU from 8.0 on: the smallest tiles of each kernel fit.
constexpr size_t kTilesShared = size_t{99} << 10;

}  // namespace

KernelTiers kernel_tiers_of(const GpuProperties& gpu) {
  KernelTiers tiers;
  tiers.shared_memory = gpu.shared_memory;
  if (gpu.compute_capability >= 80) {
    tiers.low_rank = Tier::kSm80;
    if (gpu.shared_memory >= kTilesShared) {
      tiers.attention = tiers.grouped_gemm = tiers.delta_rule = tiers.ssd_scan = Tier::kSm80;
    }
  }
  // wgmma exists only on 9.0, and so do cuBLASLt's scales of rows and of blocks of 128.
  if (gpu.compute_capability == 90) {
    tiers.attention = tiers.grouped_gemm = tiers.loss_rows = tiers.matmul_choice = tiers.fp8 = Tier::kSm90;
  }
  return tiers;
}

KernelTiers kernel_tiers_of(GpuProperties gpu, const KernelLimit& limit) {
  constexpr int kCapability[] = {0, 80, 90};  // compute capability of each tier but the last
  gpu.shared_memory = std::min(gpu.shared_memory, limit.shared_memory);
  if (limit.tier != Tier::kSm100) {
    gpu.compute_capability = std::min(gpu.compute_capability, kCapability[static_cast<int>(limit.tier)]);
  }
  return kernel_tiers_of(gpu);
}

const KernelTiers& device_tiers(CudaQueue& queue) {
  auto& tiers = queue.state<std::optional<KernelTiers>>();
  if (!tiers) tiers = kernel_tiers_of({queue.compute_capability(), queue.shared_memory()});
  return *tiers;
}

KernelTiers kernel_tiers(const Stream& stream) {
  const CudaQueue& queue = stream.cuda();
  return kernel_tiers_of({queue.compute_capability(), queue.shared_memory()}, stream.kernel_limit());
}

}  // namespace hone::cuda
