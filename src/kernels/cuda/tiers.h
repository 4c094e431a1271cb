// Which kernels a GPU runs: one table, kernel by tier, filled once from the device's properties. An op asks it and no
// other property of the device; sizes and dtypes are the op's own conditions besides.
#pragma once

#include <cstddef>

#include "core/context.h"
#include "core/kernel_tier.h"

namespace hone::cuda {

using Tier = KernelTier;

/// The best tier that this program has of each kernel for a GPU.
struct KernelTiers {
  Tier attention = Tier::kGeneral;      ///< forward and backward
  Tier grouped_gemm = Tier::kGeneral;   ///< rows by groups: forward, dx, dw, and the gated activation's gradient
  Tier low_rank = Tier::kGeneral;       ///< products with a thin matrix, dense and grouped
  Tier delta_rule = Tier::kGeneral;     ///< the gated delta rule by chunks
  Tier loss_rows = Tier::kGeneral;      ///< softmax and its gradient over a row of logits
  Tier matmul_choice = Tier::kGeneral;  ///< among cuBLASLt's algorithms: whose GPUs the choice was measured on
  size_t shared_memory = 0;             ///< bytes that a block may have: kernels choose their tiles by it
};

/// What the table is made from.
struct GpuProperties {
  int compute_capability = 0;  ///< 10 · major + minor
  size_t shared_memory = 0;    ///< bytes that a block may have
};
KernelTiers kernel_tiers_of(const GpuProperties& gpu);
/// Of at most the limit: what a GPU of that tier and so much shared memory would run.
KernelTiers kernel_tiers_of(GpuProperties gpu, const KernelLimit& limit);

/// Of the context's GPU, whatever tests have asked for.
const KernelTiers& device_tiers(CudaQueue& queue);
/// Of the context's GPU, within the limit of its stream.
KernelTiers kernel_tiers(const Context& context);

}  // namespace hone::cuda
