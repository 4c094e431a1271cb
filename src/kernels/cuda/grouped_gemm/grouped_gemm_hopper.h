// The bfloat16 products of grouped_gemm.h on Hopper: wgmma fed by TMA, with persistent CTAs over the tiles of all
// groups. Arguments that a predicate rejects go to the general kernels. CUDA only.
#pragma once

#include "kernels/cuda/grouped_gemm/grouped_gemm.h"

namespace hone::cuda {

/// Whether the Hopper kernel supports these arguments: bfloat16, row lengths that are multiples of 8 elements, 16-byte
/// alignment, and a GPU of tier sm90 (kernels/cuda/tiers.h).
bool hopper_can_run(const Context& context, const GroupedGemmArgs& args);
bool hopper_can_run(const Context& context, const GroupedDswigluArgs& args);
bool hopper_can_run(const Context& context, const GroupedWgradArgs& args);

/// Predicates depend only on shapes, types and the device, so that a dry pass takes the same path as a real one.
void grouped_gemm_hopper(const Context& context, const GroupedGemmArgs& args);
void grouped_dswiglu_hopper(const Context& context, const GroupedDswigluArgs& args);
void grouped_wgrad_hopper(const Context& context, const GroupedWgradArgs& args);

}  // namespace hone::cuda
