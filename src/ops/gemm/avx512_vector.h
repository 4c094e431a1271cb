// The vectors of AVX-512 for tile_vector.h's operations. Included only by files that are compiled for it.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/gemm/tile_vector.h"

namespace hone {
namespace {

struct Avx512Native {
  typedef float F __attribute__((vector_size(64)));
  typedef uint32_t U __attribute__((vector_size(64)));
  typedef uint16_t Half __attribute__((vector_size(32)));

  static F broadcast(float x) { return _mm512_set1_ps(x); }
  static F multiply_add(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
};
using Avx512Vector = Vector<Avx512Native, 16>;

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/// The mask of the first `count` lanes; count may exceed the lanes.
inline __mmask16 first_lanes(int64_t count) {
  return count >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1u << count) - 1);
}

}  // namespace
}  // namespace hone
