#include "ops/qk_norm_rope/head_compute.h"

namespace hone::cpu {

constinit const HeadKernels kHeadKernelsAvx2 = kKernels;

}  // namespace hone::cpu
