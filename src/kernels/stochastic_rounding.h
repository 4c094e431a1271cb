// Stochastic rounding to bfloat16, for values that change little in a step: the optimizer's moments (by a thousandth),
// parameters without a float32 master, gradients that later micro-batches add to. Such changes are less than half the
// distance of two bfloat16, so rounding to nearest would lose them all. Source: Croci et al., "Stochastic rounding:
// implementation, error analysis and applications" (Royal Society Open Science, 2022).
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "core/base/host_device.h"
#include "core/base/philox.h"

namespace hone {

/// The bits of the bfloat16 above or below a value, chosen with probabilities such that the mean is the value. `random`
/// has 16 bits. NaN stays NaN; the result is finite or infinite like its neighbours.
HONE_HOST_DEVICE inline uint16_t stochastic_bf16(float value, uint32_t random) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + (random & 0xffffu)) >> 16);
}

/// Uses of random numbers; each has its own stream.
enum class RoundingUse : uint32_t {
  kMoments = 0x6d6f6dU,    ///< 16 bits of a word for each of two moments
  kParameter = 0x706172U,  ///< the lower 16 bits
  kGradient = 0x677264U,   ///< the lower 16 bits
};

/// Random words of four consecutive elements, the first a multiple of 4; different for each `salt`.
HONE_HOST_DEVICE inline std::array<uint32_t, 4> rounding_words(uint64_t key, int64_t first_element, RoundingUse use,
                                                               uint32_t salt = 0) {
  const auto group = static_cast<uint64_t>(first_element) / 4;
  return philox(key,
                {static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), static_cast<uint32_t>(use), salt});
}

/// A salt from four addends, to distinguish micro-batches, which replay one recorded graph with the same key.
HONE_HOST_DEVICE inline uint32_t salt_of(const float (&addends)[4]) {
  uint32_t salt = 0;
  for (const float value : addends) salt = std::rotl(salt, 7) ^ std::bit_cast<uint32_t>(value);
  return salt;
}

}  // namespace hone
