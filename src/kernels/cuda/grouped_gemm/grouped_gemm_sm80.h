// The products of grouped_gemm.h in bfloat16 by mma.sync, fed by cp.async: tier sm80. Each has a predicate; arguments
// that it refuses go to the general kernels. CUDA only.
#pragma once

#include "kernels/cuda/grouped_gemm/grouped_gemm.h"

namespace hone::cuda {

/// True if the kernels of tier sm80 take these arguments: bfloat16, row lengths that are multiples of 8 elements,
/// 16-byte aligned, and a GPU of that tier (kernels/cuda/tiers.h). Shapes, types and the device alone decide.
bool sm80_can_run(const Context& context, const GroupedGemmArgs& args);
bool sm80_can_run(const Context& context, const GroupedDswigluArgs& args);
bool sm80_can_run(const Context& context, const GroupedWgradArgs& args);

void grouped_gemm_sm80(const Context& context, const GroupedGemmArgs& args);
void grouped_dswiglu_sm80(const Context& context, const GroupedDswigluArgs& args);
void grouped_wgrad_sm80(const Context& context, const GroupedWgradArgs& args);

}  // namespace hone::cuda
