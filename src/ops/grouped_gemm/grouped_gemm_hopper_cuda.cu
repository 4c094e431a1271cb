#include "core/cuda_launch.h"
#include "ops/grouped_gemm/grouped_gemm_hopper.h"

namespace hone::cuda {

bool hopper_can_run(const Context&, const GroupedGemmArgs&) { return false; }
bool hopper_can_run(const Context&, const GroupedDswigluArgs&) { return false; }
bool hopper_can_run(const Context&, const GroupedWgradArgs&) { return false; }

void grouped_gemm_hopper(const Context&, const GroupedGemmArgs&) { HONE_ASSERT(false, "not written"); }
void grouped_dswiglu_hopper(const Context&, const GroupedDswigluArgs&) { HONE_ASSERT(false, "not written"); }
void grouped_wgrad_hopper(const Context&, const GroupedWgradArgs&) { HONE_ASSERT(false, "not written"); }

}  // namespace hone::cuda
