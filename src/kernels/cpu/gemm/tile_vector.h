// Vectors of the tile kernel for any width, written with the compiler's vector extensions.
//
// Included only by tile_kernel_{baseline,avx2,avx512}.cpp and, with avx512_vector.h, by *_amx.cpp, which are compiled
// for different instruction sets. Everything is in the anonymous namespace, and no inline function of the standard
// library is called: functions with external linkage would be merged across those files, and the linker could keep a
// copy that the machine cannot run.
#pragma once

#include <cstdint>
#include <utility>

namespace hone {
namespace {

/// Operations on a vector of N float32. Native defines the types F (N float), U (N uint32_t) and Half (N uint16_t), and
/// the operations that differ by instruction set: broadcast(x), multiply_add(a, b, c) = a * b + c, stream(p, v), a
/// non-temporal store to an aligned p, and end_streams(), needed before another thread may read it.
template <class Native, int N>
struct Vector : Native {
  static constexpr int kLanes = N;
  using F = typename Native::F;
  using U = typename Native::U;
  using Half = typename Native::Half;

  static F load(const float* p) {
    F v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  static void store(float* p, F v) { __builtin_memcpy(p, &v, sizeof(v)); }

  /// Loads the bits of bfloat16.
  static F load(const uint16_t* p) {
    Half half;
    __builtin_memcpy(&half, p, sizeof(half));
    return (F)(__builtin_convertvector(half, U) << 16);
  }
  /// Rounds to nearest even; NaN stays NaN (as BFloat16).
  static void store(uint16_t* p, F v) {
    const U bits = (U)v;
    const U rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const U quiet = (bits >> 16) | 0x40u;
    const U is_nan = (U)(v != v);
    const U result = (is_nan & quiet) | (~is_nan & rounded);
    const Half half = __builtin_convertvector(result, Half);
    __builtin_memcpy(p, &half, sizeof(half));
  }

  /// Loads bits without conversion.
  static U load_bits(const void* p) {
    U v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }

  /// Transposes N rows of N 32-bit lanes that start at rows[j] + offset bytes.
  static void load_transposed(const void* const (&rows)[N], int64_t offset, U (&columns)[N]) {
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) columns[j] = load_bits(static_cast<const char*>(rows[j]) + offset);
    transpose(columns);
  }

  /// Transposes N rows of N lanes: step D exchanges blocks of D x D across the diagonal of blocks of 2D x 2D.
  static void transpose(U (&rows)[N]) { transpose_from<N / 2>(rows); }

 private:
  template <int D>
  static void transpose_from(U (&rows)[N]) {
    if constexpr (D > 0) {
#pragma GCC unroll 16
      for (int i = 0; i < N; ++i) {
        if (i & D) continue;
        const U upper = rows[i], lower = rows[i + D];
        rows[i] = left_blocks<D>(upper, lower, std::make_integer_sequence<int, N>{});
        rows[i + D] = right_blocks<D>(upper, lower, std::make_integer_sequence<int, N>{});
      }
      transpose_from<D / 2>(rows);
    }
  }

  template <int D, int... Lane>
  static U left_blocks(U upper, U lower, std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(upper, lower, ((Lane & D) ? N + Lane - D : Lane)...);
  }

  template <int D, int... Lane>
  static U right_blocks(U upper, U lower, std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(upper, lower, ((Lane & D) ? N + Lane : Lane + D)...);
  }
};

}  // namespace
}  // namespace hone
