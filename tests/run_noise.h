// How far two correct runs of one job may be from each other, for tests that compare them: ranks with one rank, experts
// on the host with those on the device, a run that went on elsewhere with one that did not.
//
// Such runs add up float32 numbers in different orders, and training amplifies what they differ by: AdamW makes a whole
// step of the rounding of a gradient near 0, and a router with two nearly equal scores sends a token to another expert.
// Where that happens depends on the model, the data and the instruction set. So the bound of a difference is the larger
// of that of runs which amplify nothing and twice the noise of the job itself: what moves if it is repeated from
// weights that are half an ulp off. Reference cases have the same bounds (docs/verify.md).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "app/verify/noise_bounds.h"
#include "core/base/dtype.h"
#include "core/base/philox.h"

namespace hone {

/// A number in which a run differs from another.
struct Difference {
  std::string what;                      ///< "loss"
  size_t step = 0;                       ///< from 0; after the last one: the number of steps
  double error = 0;                      ///< relative, or as the bound is
  double bound = 0;                      ///< where nothing is amplified
  double most_noise = kMostNumberNoise;  ///< more than this does not count: it would hide errors
};
using Differences = std::vector<Difference>;

/// |a − b| / |b|; 0 if both are equal.
inline double relative_error(double a, double b) { return a == b ? 0 : std::abs(a - b) / std::abs(b); }

/// The most repetitions with other jitters. A tie that a correct run crosses is crossed by about every third of them.
constexpr uint64_t kMostJitters = 12;

/// Moves every value by half an ulp of `dtype` in the mean: half of them, at random, to one of their neighbours. Zeros
/// stay.
inline void jitter(std::span<float> values, DType dtype, uint64_t seed) {
  PhiloxSequence random(seed);
  for (float& value : values) {
    const uint32_t draw = random.next();
    if ((draw & 1) == 0 || value == 0) continue;
    const bool up = (draw & 2) != 0;
    if (dtype == DType::kBF16) {
      BFloat16 narrow(value);
      narrow.bits = static_cast<uint16_t>(up ? narrow.bits + 1 : narrow.bits - 1);
      value = narrow;
    } else {
      value = std::nextafter(value, (up ? 1.0f : -1.0f) * std::numeric_limits<float>::infinity());
    }
  }
}

/// What remains of the differences of two runs: a line for each that is above its bound and above twice the noise.
/// `repeated(seed)` gives the differences of the job's repetition on weights that were jittered by that seed from the
/// job on the weights themselves, by the same names. It is called where a bound is exceeded, and as often as it may
/// help.
inline std::vector<std::string> unexplained(const Differences& found,
                                            const std::function<Differences(uint64_t seed)>& repeated) {
  std::vector<double> noise(found.size(), 0);
  const auto bound = [&](size_t i) {
    const Difference& d = found[i];
    return std::max(d.bound, kNoiseFactor * std::min(noise[i], d.most_noise));
  };
  const auto remains = [&](size_t i) { return !(found[i].error <= bound(i)); };  // NaN does
  const auto noise_may_help = [&] {
    bool some = false;
    for (size_t i = 0; i < found.size(); ++i) {
      const Difference& d = found[i];
      if (!remains(i)) continue;
      if (!(d.error <= kNoiseFactor * d.most_noise)) return false;  // no noise explains it
      some = true;
    }
    return some;
  };
  for (uint64_t seed = 1; seed <= kMostJitters && noise_may_help(); ++seed) {
    for (const Difference& other : repeated(seed)) {
      for (size_t i = 0; i < found.size(); ++i) {  // what a run has left it need not come back to
        if (other.what == found[i].what && other.step <= found[i].step && other.error > noise[i]) {
          noise[i] = other.error;
        }
      }
    }
  }
  std::vector<std::string> lines;
  for (size_t i = 0; i < found.size(); ++i) {
    const Difference& d = found[i];
    if (remains(i)) {
      lines.push_back(fmt::format("{} of step {} is off by {:.2g}; bound {:.2g}, noise {:.2g}", d.what, d.step, d.error,
                                  bound(i), noise[i]));
    }
  }
  return lines;
}

}  // namespace hone
