// The codes of dynamic_code.h, bitwise equal, with a third of the instructions: no loop over decades, no division.
// Tables are in shared memory. Included by *_cuda.cu only.
#pragma once

#include "ops/adamw/dynamic_code.h"

#ifdef __CUDACC__

namespace hone::cuda {

/// A divisor used many times. Quotients equal those of `/`: an approximation is corrected by its remainder, which is
/// exact with fused multiply-add. Source: Markstein, "Computation of elementary functions on the IBM RISC System/6000
/// processor", IBM J. Res. Dev. 34 (1990).
class Divisor {
 public:
  Divisor() = default;
  __device__ explicit Divisor(float value) : value_(value), inverse_(1.0f / value) {
    // Outside of these bounds a remainder may be inexact.
    fast_ = fabsf(value) >= 0x1p-60f && fabsf(value) <= 0x1p60f;
  }
  /// Whether under<true>() may be used.
  __device__ bool fast() const { return fast_; }
  /// dividend / value; the dividend must be finite if fast().
  __device__ float under(float dividend) const { return fast_ ? under<true>(dividend) : under<false>(dividend); }
  template <bool kFast>
  __device__ float under(float dividend) const {
    if constexpr (!kFast) return dividend / value_;
    const float quotient = dividend * inverse_;
    return fmaf(fmaf(-quotient, value_, dividend), inverse_, quotient);
  }

 private:
  float value_, inverse_;
  bool fast_;
};

/// Tables for signed or unsigned codes.
template <bool kSigned>
struct DynamicTables {
  using Tree = DynamicTree<kSigned>;
  static constexpr int kDecades = 7, kBinades = 21;
  /// Magnitudes in [2^e, 2^(e+1)) are `decades` below the top decade; those less than `bound` are one more below.
  struct Binade {
    float bound;
    int decades;
  };

  float values[256];         ///< dynamic_values()
  float inverse_gaps[256];   ///< 1 / (values[i + 1] - values[i]), i < kLast
  float2 decades[kDecades];  ///< for the k-th from the top: index of a magnitude ≈ .x · magnitude + .y
  Binade binades[kBinades];  ///< e = -20 (and below) to 0

  static constexpr DynamicTables make() {
    DynamicTables tables{};
    const std::array<float, 256> all = dynamic_values<kSigned>();
    for (int i = 0; i < 256; ++i) tables.values[i] = all[static_cast<size_t>(i)];
    for (int i = 0; i < Tree::kLast; ++i) {
      tables.inverse_gaps[i] = static_cast<float>(1.0 / static_cast<double>(tables.values[i + 1] - tables.values[i]));
    }
    double power = 1;
    for (int k = 0; k < kDecades; ++k, power *= 10) {
      const double parts = 1 << (Tree::kTop - k);
      // The centre of part i is value i; halves are rounded down.
      tables.decades[k] = {static_cast<float>(parts / 0.9 * power),
                           static_cast<float>(parts * (8.0 / 9.0) - 0.5 - Tree::kShift - 0.5)};
    }
    double end = 2;  // end of a binade
    for (int b = kBinades - 1; b >= 0; --b, end /= 2) {
      float bound = 0.1f;
      for (int k = 1; k < kDecades; ++k, bound *= 0.1f) {
        if (static_cast<double>(bound) >= end) {
          ++tables.binades[b].decades;
        } else if (static_cast<double>(bound) >= end / 2) {
          tables.binades[b].bound = bound;
        }
      }
    }
    return tables;
  }

  /// As dynamic_code(value, scale, random), with `random` in the low 16 bits; other bits are ignored. kFast:
  /// scale.fast().
  template <bool kFast>
  __device__ uint32_t code(float value, const Divisor& scale, uint32_t random) const {
    const float ratio = scale.under<kFast>(value);
    const float magnitude = fminf(fabsf(ratio), 1.0f);
    constexpr int kFirst = 128 - kBinades;  // the least biased exponent
    const Binade binade = binades[max(__float_as_int(magnitude) >> 23, kFirst) - kFirst];
    const float2 decade = decades[binade.decades + (magnitude < binade.bound ? 1 : 0)];
    const float place = fminf(fmaxf(fmaf(decade.x, magnitude, decade.y), 0.0f), Tree::kLast - 1);
    constexpr float kWhole = 0x1p23f;  // adding it rounds to an integer in the lowest bits
    int index = __float_as_int(place + kWhole) - __float_as_int(kWhole);
    float below = values[index], above = values[index + 1];
    if (magnitude < below) {
      above = below;
      below = values[--index];
    } else if (magnitude >= above && index < Tree::kLast - 1) {
      below = above;
      above = values[++index + 1];
    }
    // The position in the gap, as a quotient that is rounded once.
    const float part = magnitude - below, gap = above - below, inverse = inverse_gaps[index];
    const float quotient = part * inverse, share = fmaf(fmaf(-quotient, gap, part), inverse, quotient);
    const float draw = __uint_as_float(0x3f800000u | (random & 0xffffu) << 7) - 1.0f;
    index += draw < share ? 1 : 0;
    if constexpr (kSigned) {
      index = ratio < 0.0f ? 256 - min(index, 127) : index;
    } else {
      index = max(index, 1);
    }
    return value == 0.0f ? 0 : static_cast<uint32_t>(index) & 0xffu;
  }
};

}  // namespace hone::cuda

#endif  // __CUDACC__
