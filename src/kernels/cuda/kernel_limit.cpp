#include "kernels/cuda/kernel_limit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "core/base/error.h"
#include "core/stream/process_kernels.h"
#include "kernels/cuda/tiers.h"

namespace hone::cuda {

namespace {

KernelLimit limit_named(const std::string& name, const std::string& where) {
  static constexpr KernelTier kTiers[] = {KernelTier::kGeneral, KernelTier::kSm80, KernelTier::kSm90,
                                          KernelTier::kSm100};
  const auto* const tier =
      std::find_if(std::begin(kTiers), std::end(kTiers), [&](KernelTier t) { return name_of(t) == name; });
  if (tier != std::end(kTiers)) return {.tier = *tier};
  const std::vector<std::string> gpus = gpu_model_options();
  if (std::find(gpus.begin(), gpus.end(), name) != gpus.end()) return kernel_limit_of(parse_gpu_model(name, where));
  throw UserError(
      fmt::format("'{}' is neither a tier of GPU kernels nor a GPU that is known.{}", name, did_you_mean(name, gpus)),
      where, fmt::format("use general, sm80, sm90 or sm100, or a GPU: {}", fmt::join(gpus, ", ")));
}

}  // namespace

KernelLimit kernel_limit_of(const GpuModel& gpu) {
  const KernelTiers tiers = kernel_tiers_of({gpu.compute_capability, gpu.shared_memory});
  return {.tier = std::max({tiers.attention, tiers.grouped_gemm, tiers.low_rank, tiers.delta_rule, tiers.ssd_scan,
                            tiers.loss_rows, tiers.matmul_choice}),
          .shared_memory = gpu.shared_memory};
}

KernelLimit parse_kernel_limit(std::string_view names, int local_rank, const std::string& where) {
  std::vector<KernelLimit> limits;
  for (bool last = false; !last;) {
    const size_t comma = names.find(',');
    last = comma == std::string_view::npos;
    limits.push_back(limit_named(std::string(names.substr(0, comma)), where));
    if (!last) names.remove_prefix(comma + 1);
  }
  if (limits.size() == 1) return limits.front();
  if (local_rank < static_cast<int>(limits.size())) return limits[static_cast<size_t>(local_rank)];
  throw UserError(fmt::format("there is no tier for local rank {}", local_rank), where,
                  "name one tier for all ranks, or one for each rank of a host");
}

}  // namespace hone::cuda
