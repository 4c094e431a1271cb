// The bfloat16 products of grouped_gemm.h by mma.sync, fed by cp.async: tier sm80. Arguments that a predicate rejects
// go to the general kernels. CUDA only.
#pragma once

#include "kernels/cuda/grouped_gemm/grouped_gemm.h"

namespace hone::cuda {

/// Whether the kernels of tier sm80 support these arguments: bfloat16, row lengths that are multiples of 8 elements,
/// 16-byte alignment, and a GPU of that tier (kernels/cuda/tiers.h). Depends only on shapes, types and the device.
bool sm80_can_run(const Context& context, const GroupedGemmArgs& args);
bool sm80_can_run(const Context& context, const GroupedDswigluArgs& args);
bool sm80_can_run(const Context& context, const GroupedWgradArgs& args);

void grouped_gemm_sm80(const Context& context, const GroupedGemmArgs& args);
void grouped_dswiglu_sm80(const Context& context, const GroupedDswigluArgs& args);
void grouped_wgrad_sm80(const Context& context, const GroupedWgradArgs& args);

}  // namespace hone::cuda
