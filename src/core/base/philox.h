// Philox4x32-10: a counter-based random number generator. The same counter gives the same numbers on every machine, in
// any order. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "core/base/host_device.h"

namespace hone {

/// Four random words for (key, counter).
HONE_HOST_DEVICE inline std::array<uint32_t, 4> philox(uint64_t key, std::array<uint32_t, 4> counter) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0], p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

/// Uniform in [0, 1), 24 bits.
HONE_HOST_DEVICE inline float to_uniform(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

/// Derives a key from a seed and a use: different uses of one seed have independent keys.
HONE_HOST_DEVICE inline uint64_t mix_key(uint64_t seed, uint64_t use) {
  const auto words = philox(seed, {static_cast<uint32_t>(use), static_cast<uint32_t>(use >> 32), 0x686f6e65u, 0u});
  return (uint64_t{words[1]} << 32) | words[0];
}

/// The numbers of (key, 0), (key, 1), … in order: for the host (initialisation, shuffling, sampling).
class PhiloxSequence {
 public:
  explicit PhiloxSequence(uint64_t key, uint64_t position = 0) : key_(key), position_(position) {}

  uint32_t next() {
    if (used_ == 4) {
      words_ = philox(key_, {static_cast<uint32_t>(position_), static_cast<uint32_t>(position_ >> 32), 0u, 0u});
      ++position_;
      used_ = 0;
    }
    return words_[static_cast<size_t>(used_++)];
  }
  float uniform() { return to_uniform(next()); }
  /// Uniform in [0, bound), without bias (rejection).
  uint64_t below(uint64_t bound) {
    const uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
    while (true) {
      const uint64_t value = (uint64_t{next()} << 32) | next();
      if (value < limit) return value % bound;
    }
  }
  /// Standard normal (Box-Muller).
  float normal() {
    const double u = (static_cast<double>(next()) + 1.0) * 0x1p-32, v = static_cast<double>(next()) * 0x1p-32;
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
  }

 private:
  uint64_t key_, position_;
  std::array<uint32_t, 4> words_{};
  int used_ = 4;
};

}  // namespace hone
