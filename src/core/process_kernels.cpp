#include "core/process_kernels.h"

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

KernelTier parse_kernel_tier(const std::string& name, const std::string& where) {
  for (const KernelTier tier : kTiers) {
    if (name_of(tier) == name) return tier;
  }
  throw UserError("'" + name + "' is not a tier of GPU kernels", where, "use general, sm80, sm90 or sm100");
}

}  // namespace hone
