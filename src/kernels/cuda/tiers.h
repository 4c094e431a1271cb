// Which kernels a GPU runs: one table, kernel by tier, filled once from the device's properties. Ops ask this table and
// no other property of the device; conditions on sizes and dtypes are their own.
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
  Tier matmul_choice = Tier::kGeneral;  ///< among cuBLASLt's algorithms: the GPUs on which the choice was measured
  size_t shared_memory = 0;             ///< bytes that a CTA may have; kernels choose their tiles by it
};

/// The properties that decide.
struct GpuProperties {
  int compute_capability = 0;  ///< 10 · major + minor
  size_t shared_memory = 0;    ///< bytes that a CTA may have
};
KernelTiers kernel_tiers_of(const GpuProperties& gpu);
/// The same within a limit: what a GPU of that tier with so much shared memory would run.
KernelTiers kernel_tiers_of(GpuProperties gpu, const KernelLimit& limit);

/// Tiers of the context's GPU, without the limit of tests.
const KernelTiers& device_tiers(CudaQueue& queue);
/// Tiers of the context's GPU, within the limit of its stream.
KernelTiers kernel_tiers(const Context& context);

}  // namespace hone::cuda
