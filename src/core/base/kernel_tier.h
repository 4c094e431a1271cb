// KernelTier: families of GPU kernels, by the first compute capability whose instructions they use, and the limit that
// tests set for the choice among them. kernels/cuda/tiers.h makes the choice, kernels/cuda/kernel_limit.h names limits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hone {

enum class KernelTier {
  kGeneral,  ///< float32 FMA, any GPU: the oracle
  kSm80,     ///< mma.sync, ldmatrix, cp.async: Ampere, Ada and consumer Blackwell
  kSm90,     ///< wgmma, TMA, clusters: only Hopper
  kSm100,    ///< tcgen05: data-centre Blackwell; no kernel yet
};

/// Allows kernels of at most this tier and shared memory per block, so a large GPU runs the kernels of a small one.
struct KernelLimit {
  KernelTier tier = KernelTier::kSm100;
  size_t shared_memory = SIZE_MAX;  ///< bytes
};

}  // namespace hone
