#include "ops/attention/vector/score_kernel.h"

#include "core/cpu/cpu_features.h"

namespace hone::cpu {

const ScoreKernel& score_kernel() {
  switch (active_isa()) {
#if defined(__x86_64__)
    case Isa::kAmx:
    case Isa::kAvx512:
      return kScoreKernelAvx512;
    case Isa::kAvx2:
      return kScoreKernelAvx2;
#endif
    default:
      return kScoreKernelBaseline;
  }
}

}  // namespace hone::cpu
