// The limit on the choice of GPU kernels with which the streams of this process begin.
#pragma once

#include <string>
#include <string_view>

#include "core/kernel_tier.h"

namespace hone {

/// Sets it; streams that exist keep theirs. Call it before other threads start.
void limit_kernels_of_process(const KernelLimit& limit);
const KernelLimit& kernel_limit_of_process();

/// "general", "sm80", "sm90" or "sm100".
std::string name_of(KernelTier tier);
/// The tier of one of these names or, of a list with commas ("sm90,sm80"), that of the rank with this number on its
/// host: a test of ranks with different GPUs. UserError, naming `where`, for another name, and for a list that ends
/// before the rank.
KernelTier parse_kernel_tier(std::string_view names, int local_rank, const std::string& where);

}  // namespace hone
