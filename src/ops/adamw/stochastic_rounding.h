// Stochastic rounding of the optimizer's moments to bfloat16. A moment changes by a thousandth of itself in a step,
// less than half the distance between two bfloat16: rounding to nearest would never move it. Source: Croci et al.,
// "Stochastic rounding: implementation, error analysis and applications" (Royal Society Open Science, 2022).
#pragma once

#include <bit>
#include <cstdint>

#include "core/host_device.h"
#include "core/philox.h"

namespace hone {

/// The bits of the bfloat16 above or below a value, the upper with the probability of how near it is: the mean is the
/// value. `random` is 16 bits. NaN stays NaN; the result is finite or infinite like its neighbours.
HONE_HOST_DEVICE inline uint16_t stochastic_bf16(float value, uint32_t random) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + (random & 0xffffu)) >> 16);
}

/// Random words of four neighbouring elements, the first a multiple of 4: 16 bits of a word for each of two moments.
HONE_HOST_DEVICE inline std::array<uint32_t, 4> moment_words(uint64_t key, int64_t first_element) {
  const auto group = static_cast<uint64_t>(first_element) / 4;
  return philox(key, {static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), 0x6d6f6dU, 0u});
}

}  // namespace hone
