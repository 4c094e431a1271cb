// The limit on the choice of GPU kernels by name: of a tier, or of a GPU whose kernels a larger one is to run.
#pragma once

#include <string>
#include <string_view>

#include "core/base/kernel_tier.h"
#include "core/cuda/gpu_models.h"

namespace hone::cuda {

/// The best tier that any kernel has on this GPU, and its shared memory.
KernelLimit kernel_limit_of(const GpuModel& gpu);

/// "general", "sm80", "sm90" or "sm100": that tier with the shared memory of the GPU which runs it. A GPU's name
/// (core/cuda/gpu_models.h): the limit of that GPU. Of a list with commas ("sm90,rtx-4090"), the limit of the rank with
/// this number on its host: a test of ranks with different GPUs. UserError, naming `where`, for another name, and for a
/// list that ends before the rank.
KernelLimit parse_kernel_limit(std::string_view names, int local_rank, const std::string& where);

}  // namespace hone::cuda
