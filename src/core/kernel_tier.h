// KernelTier: families of GPU kernels, by the first compute capability whose instructions they use, and the limit that
// tests put on the choice among them. The choice itself is kernels/cuda/tiers.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hone {

enum class KernelTier {
  kGeneral,  ///< float32 FMA, any GPU: the oracle
  kSm80,     ///< mma.sync, ldmatrix, cp.async: Ampere, Ada and consumer Blackwell
  kSm90,     ///< wgmma, TMA, clusters: Hopper alone
  kSm100,    ///< tcgen05: data-centre Blackwell; no kernel yet
};

/// Kernels of at most this tier, with at most so much shared memory a block: a large GPU runs those of a small one.
struct KernelLimit {
  KernelTier tier = KernelTier::kSm100;
  size_t shared_memory = SIZE_MAX;  ///< bytes
};

}  // namespace hone
