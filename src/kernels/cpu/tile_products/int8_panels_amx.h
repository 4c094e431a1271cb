// Panels of int8 tiles: rounds rows of bfloat16 to 8 bits, transposes weights for the gradient's product, and scales
// integer sums. Included only by expert_int8_tiles_amx.cpp.
//
// A tile of rows has 16 rows of 64 k; a tile of W has 16 groups of 4 k, each 16 lanes x 4 k. TDPBSSD multiplies them to
// 16 x 16 int32. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBSSD.
#pragma once

#include <immintrin.h>

#include "formats/int8_weights.h"
#include "kernels/cpu/gemm/amx_tiles.h"
#include "kernels/cpu/gemm/avx512_vector.h"

namespace hone::amx {
namespace {

constexpr int64_t kInt8Depth = kInt8TileColumns;

/// 64 consecutive bfloat16 of a row as float32, multiplied by optional scales.
struct Neighbours {
  __m512 quarter[4];

  [[gnu::always_inline]] Neighbours(const uint16_t* row, const float* scales) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      quarter[i] = Avx512Vector::load(row + 16 * i);
      if (scales) quarter[i] = _mm512_mul_ps(quarter[i], _mm512_loadu_ps(scales + 16 * i));
    }
  }

  /// Multiplies by `inverse`, which makes magnitudes at most 127, and rounds to nearest, ties to even.
  __m512i rounded(__m512 inverse) const {
    __m512i q[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) q[i] = _mm512_cvtps_epi32(_mm512_mul_ps(quarter[i], inverse));
    // Packing works within 128-bit lanes; the final permutation restores the order.
    const __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(q[0], q[1]), _mm512_packs_epi32(q[2], q[3]));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_maskz_permutexvar_epi32(0xffff, order, bytes);
  }
};

/// The largest magnitude of `depth` consecutive elements. Bits of magnitudes are ordered like the numbers, with NaN on
/// top.
inline float largest_magnitude(const uint16_t* row, const float* scales, int64_t depth) {
  __m512i largest = _mm512_setzero_si512();
  if (!scales) {
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    for (int64_t k = 0; k < depth; k += 32) {
      largest = _mm512_max_epu16(largest, _mm512_and_si512(_mm512_loadu_si512(row + k), magnitude));
    }
    const __m512i odd = _mm512_and_si512(largest, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
    largest = _mm512_max_epu32(odd, _mm512_slli_epi32(largest, 16));
  } else {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    for (int64_t k = 0; k < depth; k += kInt8Depth) {
      const Neighbours n(row + k, scales + k);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) largest = _mm512_max_epu32(largest, (__m512i)n.quarter[i] & magnitude);
    }
  }
  return __builtin_bit_cast(float, _mm512_reduce_max_epu32(largest));
}

/// Rounds `depth` k of a row to int8 as row `lane` of the tiles at `tiles`, and returns its scale. For values that are
/// not finite the scale is infinity or NaN, and so is every sum of the row. Prefetches `next` for the next call.
[[gnu::always_inline]] inline float round_row(const uint16_t* row, const float* scales, int64_t depth, int64_t lane,
                                              const uint16_t* next, std::byte* tiles) {
  const float largest = largest_magnitude(row, scales, depth);
  const bool vanishes = largest < kLeastInt8Magnitude;
  const __m512 inverse = _mm512_set1_ps(vanishes ? 0.0f : 127.0f / largest);
  for (int64_t k = 0; k < depth; k += kInt8Depth, tiles += kTileBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(next + k), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(next + k + 32), _MM_HINT_T0);
    __builtin_prefetch(tiles + 64 * lane + 64, 1);
    const Neighbours n(row + k, scales ? scales + k : nullptr);
    _mm512_store_si512(tiles + 64 * lane, n.rounded(inverse));
  }
  return vanishes ? 0.0f : largest / 127.0f;
}

/// Transposes a quarter of four tiles of W, which hold 64 n x 64 k: 16 of the k as lanes, 64 n as depth. `from` is the
/// first of the quarter's four groups of k in the first tile; the next tile of 16 n is `next_tile` bytes further.
[[gnu::always_inline]] inline void turn_tile(const std::byte* from, int64_t next_tile, std::byte* to) {
  const __m512i columns_first =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
#pragma GCC unroll 4
  for (int tile = 0; tile < 4; ++tile, from += next_tile, to += 256) {
    const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 64);
    const __m512i c = _mm512_loadu_si512(from + 128), d = _mm512_loadu_si512(from + 192);
    // Runs of 4 n: first joins the same run of each group of k, then bytes of the same k.
    const __m512i low_ab = _mm512_shuffle_i32x4(a, b, 0x44), high_ab = _mm512_shuffle_i32x4(a, b, 0xee);
    const __m512i low_cd = _mm512_shuffle_i32x4(c, d, 0x44), high_cd = _mm512_shuffle_i32x4(c, d, 0xee);
    const __m512i runs[4] = {_mm512_shuffle_i32x4(low_ab, low_cd, 0x88), _mm512_shuffle_i32x4(low_ab, low_cd, 0xdd),
                             _mm512_shuffle_i32x4(high_ab, high_cd, 0x88),
                             _mm512_shuffle_i32x4(high_ab, high_cd, 0xdd)};
#pragma GCC unroll 4
    for (int run = 0; run < 4; ++run) {
      _mm512_store_si512(to + 64 * run, _mm512_shuffle_epi8(runs[run], columns_first));
    }
  }
}

}  // namespace
}  // namespace hone::amx
