// AVX-512 vectors for the operations of tile_vector.h. Included only by files that are compiled for it.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/gemm/tile_vector.h"

namespace hone {
namespace {

struct Avx512Native {
  typedef float F __attribute__((vector_size(64)));
  typedef uint32_t U __attribute__((vector_size(64)));
  typedef uint16_t Half __attribute__((vector_size(32)));

  static F broadcast(float x) { return _mm512_set1_ps(x); }
  static F multiply_add(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static void stream(float* p, F v) { _mm512_stream_ps(p, v); }
  static void end_streams() { _mm_sfence(); }
};

struct Avx512Vector : Vector<Avx512Native, 16> {
  using Vector::load;
  /// Loads the bits of bfloat16. g++ 12 would convert a vector extension type in two halves and join them.
  static F load(const uint16_t* p) { return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static F widened(__m256i bf16) {
    // Masked with ones: g++ 12 warns that the plain intrinsic reads an uninitialised value (GCC bug 105593).
    return (F)((U)_mm512_maskz_cvtepu16_epi32(0xffff, bf16) << 16);
  }

  /// Loads each 4 x 4 block into its transposed quarter of a vector: masked loads use two ports, but shuffles, half of
  /// which remain, only one (measured: 1.45 times as fast from L1).
  static void load_transposed(const void* const (&rows)[16], int64_t offset, U (&columns)[16]) {
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter) {
      const auto block = [&](int row) {
        return _mm_loadu_ps(reinterpret_cast<const float*>(static_cast<const char*>(rows[row]) + offset) + 4 * quarter);
      };
      F v[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        __m512 blocks = _mm512_castps128_ps512(block(j));
        blocks = _mm512_mask_broadcast_f32x4(blocks, 0x00f0, block(j + 4));
        blocks = _mm512_mask_broadcast_f32x4(blocks, 0x0f00, block(j + 8));
        v[j] = _mm512_mask_broadcast_f32x4(blocks, 0xf000, block(j + 12));
      }
      const Pairs low01 = (Pairs)unpack_low(v[0], v[1]), high01 = (Pairs)unpack_high(v[0], v[1]);
      const Pairs low23 = (Pairs)unpack_low(v[2], v[3]), high23 = (Pairs)unpack_high(v[2], v[3]);
      columns[4 * quarter] = (U)__builtin_shufflevector(low01, low23, 0, 8, 2, 10, 4, 12, 6, 14);
      columns[4 * quarter + 1] = (U)__builtin_shufflevector(low01, low23, 1, 9, 3, 11, 5, 13, 7, 15);
      columns[4 * quarter + 2] = (U)__builtin_shufflevector(high01, high23, 0, 8, 2, 10, 4, 12, 6, 14);
      columns[4 * quarter + 3] = (U)__builtin_shufflevector(high01, high23, 1, 9, 3, 11, 5, 13, 7, 15);
    }
  }

 private:
  typedef uint64_t Pairs __attribute__((vector_size(64)));

  static F unpack_low(F a, F b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
  }
  static F unpack_high(F a, F b) {
    return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
};

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/// Mask of the first `count` lanes; `count` may exceed the number of lanes.
inline __mmask16 first_lanes(int64_t count) {
  return count >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1u << count) - 1);
}

}  // namespace
}  // namespace hone
