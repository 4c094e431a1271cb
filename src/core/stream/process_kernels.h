// The limit on the choice of GPU kernels with which the streams of this process begin.
#pragma once

#include <string>

#include "core/base/kernel_tier.h"

namespace hone {

/// Sets it; streams that exist keep theirs. Call it before other threads start.
void limit_kernels_of_process(const KernelLimit& limit);
const KernelLimit& kernel_limit_of_process();

/// "general", "sm80", "sm90" or "sm100".
std::string name_of(KernelTier tier);

}  // namespace hone
