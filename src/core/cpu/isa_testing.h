// For tests: kernels of another instruction set.
#pragma once

#include "core/cpu/cpu_features.h"

namespace hone {

/// Kernels use this level (force_isa) while it lives, then the one before.
class ForcedIsa {
 public:
  explicit ForcedIsa(Isa isa) : before_(active_isa()) { force_isa(isa); }
  ~ForcedIsa() { force_isa(before_); }
  ForcedIsa(const ForcedIsa&) = delete;
  ForcedIsa& operator=(const ForcedIsa&) = delete;

 private:
  Isa before_;
};

}  // namespace hone
