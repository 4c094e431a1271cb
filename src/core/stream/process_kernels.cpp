#include "core/stream/process_kernels.h"

namespace hone {

namespace {

KernelLimit& limit_of_process() {
  static KernelLimit limit;
  return limit;
}

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

}  // namespace hone
