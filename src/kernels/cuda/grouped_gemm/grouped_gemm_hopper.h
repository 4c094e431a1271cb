// The products of grouped_gemm.h in bfloat16 on Hopper: wgmma fed by TMA, persistent CTAs over the tiles of all groups.
// Each has a predicate; arguments that it refuses go to the general kernels. CUDA only.
#pragma once

#include "kernels/cuda/grouped_gemm/grouped_gemm.h"

namespace hone::cuda {

/// True if the Hopper kernel takes these arguments: bfloat16, row lengths that are multiples of 8 elements, 16-byte
/// aligned, and a GPU of tier sm90 (kernels/cuda/tiers.h).
bool hopper_can_run(const Context& context, const GroupedGemmArgs& args);
bool hopper_can_run(const Context& context, const GroupedDswigluArgs& args);
bool hopper_can_run(const Context& context, const GroupedWgradArgs& args);

/// A dry pass must take the same path as a real one: predicates depend on shapes, types and the device alone.
void grouped_gemm_hopper(const Context& context, const GroupedGemmArgs& args);
void grouped_dswiglu_hopper(const Context& context, const GroupedDswigluArgs& args);
void grouped_wgrad_hopper(const Context& context, const GroupedWgradArgs& args);

}  // namespace hone::cuda
