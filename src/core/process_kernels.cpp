#include "core/process_kernels.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "core/error.h"

namespace hone {

namespace {

KernelLimit& limit_of_process() {
  static KernelLimit limit;
  return limit;
}

constexpr KernelTier kTiers[] = {KernelTier::kGeneral, KernelTier::kSm80, KernelTier::kSm90, KernelTier::kSm100};

}  // namespace

void limit_kernels_of_process(const KernelLimit& limit) { limit_of_process() = limit; }
const KernelLimit& kernel_limit_of_process() { return limit_of_process(); }

std::string name_of(KernelTier tier) {
  switch (tier) {
    case KernelTier::kGeneral:
      return "general";
    case KernelTier::kSm80:
      return "sm80";
    case KernelTier::kSm90:
      return "sm90";
    case KernelTier::kSm100:
      return "sm100";
  }
  return "";
}

KernelTier parse_kernel_tier(std::string_view names, int local_rank, const std::string& where) {
  std::vector<KernelTier> tiers;
  for (bool last = false; !last;) {
    const size_t comma = names.find(',');
    last = comma == std::string_view::npos;
    const std::string name(names.substr(0, comma));
    const auto* const tier =
        std::find_if(std::begin(kTiers), std::end(kTiers), [&](KernelTier t) { return name_of(t) == name; });
    if (tier == std::end(kTiers)) {
      throw UserError("'" + name + "' is not a tier of GPU kernels", where, "use general, sm80, sm90 or sm100");
    }
    tiers.push_back(*tier);
    if (!last) names.remove_prefix(comma + 1);
  }
  if (tiers.size() == 1) return tiers.front();
  if (local_rank < static_cast<int>(tiers.size())) return tiers[static_cast<size_t>(local_rank)];
  throw UserError("there is no tier for local rank " + std::to_string(local_rank), where,
                  "name one tier for all ranks, or one for each rank of a host");
}

}  // namespace hone
