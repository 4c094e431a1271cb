#include "ops/qk_norm_rope/head_compute.h"

namespace hone::cpu {

constinit const HeadKernels kHeadKernelsBaseline = kKernels;

}  // namespace hone::cpu
