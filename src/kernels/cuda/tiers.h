// The kernels that a GPU runs: one table of tiers by kernel, filled once from the device's properties. Ops use this
// table and no other property of the device, and add conditions on sizes and dtypes.
#pragma once

#include <cstddef>

#include "core/base/kernel_tier.h"
#include "core/stream/context.h"

namespace hone::cuda {

using Tier = KernelTier;

/// The best available tier of each kernel for a GPU.
struct KernelTiers {
  Tier attention = Tier::kGeneral;      ///< forward and backward
  Tier grouped_gemm = Tier::kGeneral;   ///< products by groups: forward, dx, dw, and the gated activation's gradient
  Tier low_rank = Tier::kGeneral;       ///< products with a thin matrix, dense and grouped
  Tier delta_rule = Tier::kGeneral;     ///< the gated delta rule by chunks
  Tier ssd_scan = Tier::kGeneral;       ///< the state-space scan by chunks
  Tier loss_rows = Tier::kGeneral;      ///< softmax and its gradient over a row of logits
  Tier matmul_choice = Tier::kGeneral;  ///< choice of cuBLASLt algorithm, by the GPUs on which it was measured
  Tier fp8 = Tier::kGeneral;            ///< products of 8-bit floats, of which kGeneral has none
  size_t shared_memory = 0;             ///< maximum bytes per CTA; determines kernels' tiles
};

/// The properties that determine the tiers.
struct GpuProperties {
  int compute_capability = 0;  ///< 10 · major + minor
  size_t shared_memory = 0;    ///< maximum bytes per CTA
};
KernelTiers kernel_tiers_of(const GpuProperties& gpu);
/// Tiers within a limit: those of a GPU of that tier with that much shared memory.
KernelTiers kernel_tiers_of(GpuProperties gpu, const KernelLimit& limit);

/// Tiers of the context's GPU, without the limit of tests.
const KernelTiers& device_tiers(CudaQueue& queue);
/// Tiers of the stream's GPU, within its limit.
KernelTiers kernel_tiers(const Stream& stream);
inline KernelTiers kernel_tiers(const Context& context) { return kernel_tiers(context.stream()); }

}  // namespace hone::cuda
