// The row functions, written once for vectors of kLanes float32.
//
// Included only by row_math_{baseline,avx2,avx512,amx}.cpp, which define kLanes and are compiled for different
// instruction sets (kLanes is not a template parameter: g++ 12 cannot convert vectors of dependent type). Everything is
// in the anonymous namespace, and no inline function of other headers is called: functions with external linkage would
// be merged across those files, and the linker could keep a copy that the machine cannot run.
//
// Elementwise loops are vectorised by the compiler. Sums are written with vector types, since a compiler may not
// reorder them.
#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "kernels/cpu/row_math/row_math_tables.h"

namespace hone {
namespace {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline float from_bits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}

/// The bits of the nearest bfloat16, ties to even; NaN stays NaN.
inline uint32_t bfloat16_bits(float x) {
  const uint32_t u = bits_of(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet_nan = (u >> 16) | 0x40u;
  return x != x ? quiet_nan : rounded;
}

/// exp(x) = 2^n · exp(r) with x = n · ln 2 + r, |r| <= ln 2 / 2, and the Cephes polynomial (S. L. Moshier) for exp(r).
/// 2^n is split into two factors, so that results overflow to infinity and underflow through subnormal numbers.
inline float exponential(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  constexpr float kRounder = 12582912.0f;  // 1.5 · 2^23: adding it leaves the nearest integer in the low bits
  const float rounder_plus_n = x * 1.44269504088896341f + kRounder;
  const float n = rounder_plus_n - kRounder;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const auto exponent = static_cast<int32_t>(bits_of(rounder_plus_n) - bits_of(kRounder));
  const int32_t half = exponent >> 1;
  const float scale1 = from_bits(static_cast<uint32_t>(half + 127) << 23);
  const float scale2 = from_bits(static_cast<uint32_t>(exponent - half + 127) << 23);
  return p * scale1 * scale2;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

typedef float F __attribute__((vector_size(4 * kLanes)));
typedef double D __attribute__((vector_size(8 * kLanes)));

F load(const float* p) {
  F v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

// bfloat16 is read and written as bits: BFloat16's members are inline functions of another header.
void widen(const BFloat16* x, float* y, int64_t n) {
  const uint16_t* bits = &x->bits;
  for (int64_t i = 0; i < n; ++i) y[i] = from_bits(static_cast<uint32_t>(bits[i]) << 16);
}
#ifdef __AVX512BF16__
// The instruction rounds 16 numbers in the time of two additions; the code below needs nine instructions.
__mmask16 first_lanes(int64_t count) {
  return count >= kLanes ? __mmask16{0xffff} : static_cast<__mmask16>((1u << count) - 1);
}
/// The instruction flushes numbers below 2^-126 to zero, so those are rounded without it.
bool any_subnormal(__m512 x) { return _mm512_fpclass_ps_mask(x, 0x20) != 0; }
__m256i halves_of(__m512 x) {
  if (!any_subnormal(x)) return (__m256i)_mm512_cvtneps_pbh(x);
  alignas(64) float numbers[kLanes];
  alignas(32) uint16_t halves[kLanes];
  _mm512_store_ps(numbers, x);
  for (int i = 0; i < kLanes; ++i) halves[i] = static_cast<uint16_t>(bfloat16_bits(numbers[i]));
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(halves));
}
void narrow(const float* x, BFloat16* y, int64_t n) {
  uint16_t* bits = &y->bits;
  for (int64_t i = 0; i < n; i += kLanes) {
    const __mmask16 lanes = first_lanes(n - i);
    _mm256_mask_storeu_epi16(bits + i, lanes, halves_of(_mm512_maskz_loadu_ps(lanes, x + i)));
  }
}
__m512i widened(__m256i halves) { return _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16); }
void round(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const __mmask16 lanes = first_lanes(n - i);
    _mm512_mask_storeu_epi32(x + i, lanes, widened(halves_of(_mm512_maskz_loadu_ps(lanes, x + i))));
  }
}
void round_and_narrow(float* x, BFloat16* y, int64_t n) {
  uint16_t* bits = &y->bits;
  for (int64_t i = 0; i < n; i += kLanes) {
    const __mmask16 lanes = first_lanes(n - i);
    const __m256i halves = halves_of(_mm512_maskz_loadu_ps(lanes, x + i));
    _mm256_mask_storeu_epi16(bits + i, lanes, halves);
    _mm512_mask_storeu_epi32(x + i, lanes, widened(halves));
  }
}
#else
void narrow(const float* x, BFloat16* y, int64_t n) {
  uint16_t* bits = &y->bits;
  for (int64_t i = 0; i < n; ++i) bits[i] = static_cast<uint16_t>(bfloat16_bits(x[i]));
}
void round(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = from_bits(bfloat16_bits(x[i]) << 16);
}
void round_and_narrow(float* x, BFloat16* y, int64_t n) {
  narrow(x, y, n);
  round(x, n);
}
#endif

void narrow_randomly(const float* x, const uint32_t* words, int shift, BFloat16* y, int64_t n) {
  uint16_t* bits = &y->bits;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t u = bits_of(x[i]), rounded = (u + (words[i] >> shift & 0xffffu)) >> 16;
    bits[i] = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : rounded);
  }
}

/// Philox4x32-10 of core/base/philox.h for kLanes / 2 counters at once; each word is in the lower half of a lane.
typedef uint64_t W __attribute__((vector_size(4 * kLanes)));
void random_words(uint64_t key, uint64_t first_group, uint32_t use, const uint32_t* salts, uint32_t* words,
                  int64_t groups) {
  constexpr int kGroups = kLanes / 2;
  constexpr uint64_t kLow = 0xffffffffu;
  W numbers;
  for (int i = 0; i < kGroups; ++i) numbers[i] = first_group + static_cast<uint64_t>(i);
  for (int64_t group = 0; group < groups; group += kGroups, numbers += kGroups) {
    const int64_t count = groups - group < kGroups ? groups - group : kGroups;
    W c0 = numbers & kLow, c1 = numbers >> 32, c2 = W{} + use, c3 = W{};
    for (int64_t i = 0; salts != nullptr && i < count; ++i) c3[i] = salts[group + i];
    uint64_t k0 = key & kLow, k1 = key >> 32;
    for (int round = 0; round < 10; ++round) {
      const W p0 = c0 * uint64_t{0xD2511F53u}, p1 = c2 * uint64_t{0xCD9E8D57u};
      c0 = (p1 >> 32) ^ c1 ^ k0;
      c1 = p1 & kLow;
      c2 = (p0 >> 32) ^ c3 ^ k1;
      c3 = p0 & kLow;
      k0 = (k0 + 0x9E3779B9u) & kLow;
      k1 = (k1 + 0xBB67AE85u) & kLow;
    }
    const W first = c0 | c1 << 32, second = c2 | c3 << 32;
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t pair[2] = {first[i], second[i]};
      __builtin_memcpy(words + 4 * (group + i), pair, sizeof(pair));
    }
  }
}

void add(const float* x, const float* z, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] + z[i];
}
void multiply(const float* x, const float* z, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * z[i];
}
void scale(float a, const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = a * x[i];
}
void add_scaled(float a, const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

void scale_int8(float scale, const int8_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = scale * static_cast<float>(x[i]);
}

// 8-bit floats are converted by shifting their bits and adding the difference of the exponent biases. A subnormal is
// read as if it had the implicit 1, one exponent higher, and an exact subtraction removes that 1 again. This avoids
// subnormal float32 numbers, which cost a hundred cycles.
void scale_e4m3(float scale, const uint8_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t code = x[i], magnitude = code & 0x7fu;
    const uint32_t subnormal = magnitude < 8 ? 1u : 0u;
    const float one = subnormal != 0 ? 0x1p-6f : 0.0f;
    const float value = from_bits((magnitude << 20) + ((120u + subnormal) << 23)) - one;
    const float signed_value = from_bits(bits_of(value) | (code & 0x80u) << 24);
    y[i] = scale * (magnitude == 0x7fu ? __builtin_nanf("") : signed_value);
  }
}
/// The two e2m1 numbers of each byte, lower half first.
struct E2m1Pairs {
  float values[256][2];

  constexpr E2m1Pairs() : values() {
    constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    for (int pair = 0; pair < 256; ++pair) {
      for (int i = 0; i < 2; ++i) {
        const int code = pair >> (4 * i) & 15;
        values[pair][i] = code < 8 ? kMagnitudes[code] : -kMagnitudes[code - 8];
      }
    }
  }
};
constexpr E2m1Pairs kE2m1Pairs;

// A table of pairs is faster than widening and computing codes (measured: 1.2e9 numbers per second and core). Scaling
// is a second pass, over data that has left the store buffer.
void scale_mxfp4(const uint8_t* scales, const uint8_t* codes, float* y, int64_t n) {
  constexpr int64_t kBlock = 32, kChunk = 16 * kBlock;
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const int64_t end = n - begin < kChunk ? n : begin + kChunk;
    for (int64_t i = begin; i < end; i += 2)
      __builtin_memcpy(y + i, kE2m1Pairs.values[codes[i / 2]], 2 * sizeof(float));
    for (int64_t block = begin; block < end; block += kBlock) {
      const uint32_t exponent = scales[block / kBlock];
      const uint32_t special = exponent == 0 ? 0x00400000u : 0x7fc00000u;  // 2^-127, NaN
      const float scale = from_bits(exponent == 0 || exponent == 255 ? special : exponent << 23);
      for (int64_t i = block; i < block + kBlock; i += kLanes) {
        const F scaled = scale * load(y + i);
        __builtin_memcpy(y + i, &scaled, sizeof(scaled));
      }
    }
  }
}

#ifdef __AVX2__
/// 16 codes of 8 bytes, a byte each.
inline __m128i separate_halves(const uint8_t* codes, bool upper_first) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)), half = _mm_set1_epi8(15);
  const __m128i lower = _mm_and_si128(bytes, half), upper = _mm_and_si128(_mm_srli_epi16(bytes, 4), half);
  return upper_first ? _mm_unpacklo_epi8(upper, lower) : _mm_unpacklo_epi8(lower, upper);
}
#endif
#ifdef __AVX512F__
/// The values are one register, which codes permute.
inline void scale_16_halves(const float* values, float scale, __m128i codes, float* y) {
  const __m512i index = _mm512_maskz_cvtepu8_epi32(0xffff, codes);
  const __m512 value = _mm512_maskz_permutexvar_ps(0xffff, index, _mm512_loadu_ps(values));
  _mm512_storeu_ps(y, _mm512_mul_ps(value, _mm512_set1_ps(scale)));
}
#elif defined(__AVX2__)
/// The values are two registers, which the lower three bits of codes permute; the fourth chooses among them.
inline void scale_16_halves(const float* values, float scale, __m128i codes, float* y) {
  const __m256 low = _mm256_loadu_ps(values), high = _mm256_loadu_ps(values + 8);
  for (int i = 0; i < 16; i += 8, codes = _mm_srli_si128(codes, 8)) {
    const __m256i index = _mm256_cvtepu8_epi32(codes);
    const __m256 value = _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index),
                                          _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
    _mm256_storeu_ps(y + i, _mm256_mul_ps(value, _mm256_set1_ps(scale)));
  }
}
#endif

void scale_halves(const float* values, float scale, const uint8_t* codes, bool upper_first, float* y, int64_t n) {
  int64_t i = 0;
#ifdef __AVX2__
  for (; i + 16 <= n; i += 16) scale_16_halves(values, scale, separate_halves(codes + i / 2, upper_first), y + i);
#endif
  for (; i < n; ++i) {
    const bool upper = (i % 2 == 0) == upper_first;
    y[i] = scale * values[upper ? codes[i / 2] >> 4 : codes[i / 2] & 15];
  }
}

float total(F v) {
  float lanes[kLanes], sum = 0;
  __builtin_memcpy(lanes, &v, sizeof(v));
  for (int lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
  return sum;
}

float dot(const float* x, const float* z, int64_t n) {
  F sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) sums[j] += load(x + i + j * kLanes) * load(z + i + j * kLanes);
  }
  float rest = 0;
  for (; i < n; ++i) rest += x[i] * z[i];
  return total((sums[0] + sums[1]) + (sums[2] + sums[3])) + rest;
}

double sum_squares(const float* x, int64_t n) {
  D sums[2] = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    for (int j = 0; j < 2; ++j) {
      const F single = load(x + i + j * kLanes);
      const D v = __builtin_convertvector(single, D);
      sums[j] += v * v;
    }
  }
  const D both = sums[0] + sums[1];
  double lanes[kLanes], sum = 0;
  __builtin_memcpy(lanes, &both, sizeof(both));
  for (int lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

float maximum(const float* x, int64_t n) {
  F largest[4];
  for (F& v : largest) v = F{} - __builtin_inff();
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const F v = load(x + i + j * kLanes);
      largest[j] = v > largest[j] ? v : largest[j];
    }
  }
  float lanes[4 * kLanes], result = -__builtin_inff();
  __builtin_memcpy(lanes, largest, sizeof(largest));
  for (float v : lanes) result = v > result ? v : result;
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

ExpSums exp_sums(const float* x, float shift, int64_t n) {
  constexpr int64_t kBlock = 256;
  float shifted[kBlock], e[kBlock];
  float ones[kBlock];
  for (float& one : ones) one = 1.0f;
  ExpSums sums;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = n - begin < kBlock ? n - begin : kBlock;
    for (int64_t i = 0; i < count; ++i) {
      shifted[i] = x[begin + i] - shift;
      e[i] = exponential(shifted[i]);
    }
    sums.sum += dot(e, ones, count);
    sums.weighted += dot(e, shifted, count);
  }
  return sums;
}

void scaled_exp(float a, float shift, const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = a * exponential(x[i] - shift);
}
void sigmoid_row(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = sigmoid(x[i]);
}
void silu(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * sigmoid(x[i]);
}
void silu_and_slope(const float* x, float* y, float* dy_dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float value = x[i], s = sigmoid(value);
    y[i] = value * s;
    dy_dx[i] = s * (1.0f + value * (1.0f - s));
  }
}
/// sigmoid(2 √(2 / π) · (x + 0.044715 x³)) = (1 + tanh of half its argument) / 2
constexpr float kGeluLinear = 1.5957691216057308f, kGeluCubic = 0.044715f;
inline float gelu_sigmoid(float x) { return sigmoid(kGeluLinear * (x + kGeluCubic * (x * x * x))); }
void gelu(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * gelu_sigmoid(x[i]);
}
void gelu_and_slope(const float* x, float* y, float* dy_dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float value = x[i], s = gelu_sigmoid(value);
    // Beyond ±16 s · (1 - s) is zero; the clamp keeps a square that overflows away from it.
    const float near = value > 16.0f ? 16.0f : value < -16.0f ? -16.0f : value;
    y[i] = value * s;
    dy_dx[i] = s * (1.0f + near * (1.0f - s) * kGeluLinear * (1.0f + 3.0f * kGeluCubic * (near * near)));
  }
}
void relu(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] < 0.0f ? 0.0f : x[i];
}
void swiglu_grad(float a, const float* gate, const float* up, const float* dy, float* __restrict y,
                 float* __restrict dgate, float* __restrict dup, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float value = gate[i], s = sigmoid(value), glu = value * s;
    const float slope = s * (1.0f + value * (1.0f - s));
    y[i] = glu * up[i];
    dgate[i] = a * (slope * up[i] * dy[i]);
    dup[i] = a * (glu * dy[i]);
  }
}

void adamw(const AdamwRow& row, int64_t n) {
  const AdamwRow a = row;
  float* __restrict p = a.parameter, * __restrict m = a.m, * __restrict v = a.v;
  const float* __restrict gradient = a.gradient;
  for (int64_t i = 0; i < n; ++i) {
    const float g = gradient[i] * a.gradient_scale;
    const float new_m = m[i] + (g - m[i]) * a.one_minus_beta1;
    const float new_v = v[i] * a.beta2 + a.one_minus_beta2 * g * g;
    const float denominator = __builtin_sqrtf(new_v) / a.sqrt_bias_correction2 + a.eps;
    p[i] = p[i] * a.decay - a.step_size * new_m / denominator;
    m[i] = new_m;
    v[i] = new_v;
  }
}

constexpr RowMath kTable = {
    .widen = &widen,
    .narrow = &narrow,
    .round = &round,
    .round_and_narrow = &round_and_narrow,
    .narrow_randomly = &narrow_randomly,
    .random_words = &random_words,
    .scale_int8 = &scale_int8,
    .scale_e4m3 = &scale_e4m3,
    .scale_mxfp4 = &scale_mxfp4,
    .scale_halves = &scale_halves,
    .add = &add,
    .multiply = &multiply,
    .scale = &scale,
    .add_scaled = &add_scaled,
    .dot = &dot,
    .sum_squares = &sum_squares,
    .maximum = &maximum,
    .exp_sums = &exp_sums,
    .scaled_exp = &scaled_exp,
    .sigmoid = &sigmoid_row,
    .silu = &silu,
    .silu_and_slope = &silu_and_slope,
    .gelu = &gelu,
    .gelu_and_slope = &gelu_and_slope,
    .relu = &relu,
    .swiglu_grad = &swiglu_grad,
    .adamw = &adamw,
};

}  // namespace
}  // namespace hone
