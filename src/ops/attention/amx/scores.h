// Shared by forward and backward of attention on AMX. Included only by *_amx.cpp; everything is in the anonymous
// namespace (see kernels/cpu/gemm/tile_vector.h).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "core/cpu/amx_registers.h"
#include "kernels/cpu/gemm/avx512_vector.h"
#include "ops/attention/amx/attention.h"

namespace hone::amx {
namespace {

constexpr float kInfinity = __builtin_inff();

inline int64_t slabs_of(int64_t rows) { return (rows + kSlab - 1) / kSlab; }

inline int64_t position(const QueryRows& queries, int64_t row) { return queries.first_query + row / queries.group; }
/// The first position that a row attends to.
inline int64_t first_seen(const QueryRows& queries, int64_t row) {
  const int64_t first = position(queries, row) - queries.window + 1;
  return queries.window > 0 && first > 0 ? first : 0;
}

/// 2^x = 2^floor(x) p(x − floor(x)); p is 1 at 0 and 2 at 1, with a relative error of at most 3.4e-6 in between
/// (equal-ripple). 0 for −infinity; NaN stays NaN.
inline __m512 exp2(__m512 x) {
  constexpr int kLessFloor = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const __m512 r = _mm512_reduce_ps(x, kLessFloor);
  __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(0.0135557472f), _mm512_set1_ps(0.052032369f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.241379763f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.693032121f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, x);
}

/// The keys that a row attends to among `count` from `first` on: [begin, end), empty if begin >= end.
struct SeenKeys {
  int64_t begin, end;

  SeenKeys(const QueryRows& queries, int64_t row, int64_t first, int64_t count) {
    const int64_t from = first_seen(queries, row) - first, to = position(queries, row) + 1 - first;
    begin = from > 0 ? smaller(from, count) : 0;
    end = to > 0 ? smaller(to, count) : 0;
  }
};

/// Sets scores of masked keys to −infinity.
inline void hide_unseen(float* scores, int64_t count, const SeenKeys& seen) {
  const __m512 hidden = _mm512_set1_ps(-kInfinity);
  for (int64_t c = 0; c < seen.begin; c += kLanes) {
    _mm512_mask_store_ps(scores + c, first_lanes(seen.begin - c), hidden);
  }
  for (int64_t c = seen.end / kLanes * kLanes; c < count; c += kLanes) {
    const __mmask16 kept = c < seen.end ? first_lanes(seen.end - c) : __mmask16{0};
    _mm512_mask_store_ps(scores + c, static_cast<__mmask16>(~kept), hidden);
  }
}

/// Zeroes `count` bfloat16 numbers, a multiple of 32.
inline void clear(uint16_t* p, int64_t count) {
  for (int64_t c = 0; c < count; c += kSlab) _mm512_store_si512(p + c, _mm512_setzero_si512());
}

/// Stores the first `count` lanes, rounded; `count` may exceed the number of lanes.
inline void store_some(uint16_t* to, int64_t count, __m512 values) {
  _mm256_mask_storeu_epi16(to, first_lanes(count), (__m256i)_mm512_cvtneps_pbh(values));
}

/// Operands of a product of Lefts x 2 tiles: tile (panel, step) is at panel · *_panel + step · *_step bytes.
struct TileOperands {
  const std::byte* left;
  int64_t left_panel, left_step, left_row;  ///< left_row: bytes between the rows of a tile
  const std::byte* right;
  int64_t right_panel, right_step;
  int64_t steps;
};

/// Float32 tiles to which a product is added; strides in elements.
struct TileSums {
  float* to;
  int64_t left_panel, right_panel, row_bytes;
  bool first;  ///< written instead of added to
};

template <int Lefts>
inline void add_product(const TileOperands& from, const TileSums& sums) {
  float* const to = sums.to;
  if (sums.first) {
    zero<0>(), zero<1>();
    if constexpr (Lefts == 2) zero<2>(), zero<3>();
  } else {
    load<0>(to, sums.row_bytes), load<1>(to + sums.right_panel, sums.row_bytes);
    if constexpr (Lefts == 2) {
      load<2>(to + sums.left_panel, sums.row_bytes);
      load<3>(to + sums.left_panel + sums.right_panel, sums.row_bytes);
    }
  }
  const std::byte *left = from.left, *right = from.right;
  for (int64_t step = 0; step < from.steps; ++step, left += from.left_step, right += from.right_step) {
    load<4>(left, from.left_row), load<6>(right, 64), multiply_add<0, 4, 6>();
    load<7>(right + from.right_panel, 64), multiply_add<1, 4, 7>();
    if constexpr (Lefts == 2) {
      load<5>(left + from.left_panel, from.left_row), multiply_add<2, 5, 6>(), multiply_add<3, 5, 7>();
    }
  }
  store<0>(to, sums.row_bytes), store<1>(to + sums.right_panel, sums.row_bytes);
  if constexpr (Lefts == 2) {
    store<2>(to + sums.left_panel, sums.row_bytes);
    store<3>(to + sums.left_panel + sums.right_panel, sums.row_bytes);
  }
}

/// scores [16 Lefts, 32] = panels of rows by the two panels of a slab of keys
template <int Lefts>
inline void score_tiles(const std::byte* rows, const std::byte* keys, int64_t steps, float* scores, int64_t stride) {
  const int64_t panel = steps * kTileBytes;
  add_product<Lefts>(
      {.left = rows,
       .left_panel = panel,
       .left_step = kTileBytes,
       .left_row = 64,
       .right = keys,
       .right_panel = panel,
       .right_step = kTileBytes,
       .steps = steps},
      {.to = scores, .left_panel = kLanes * stride, .right_panel = kLanes, .row_bytes = stride * 4, .first = true});
}

}  // namespace
}  // namespace hone::amx
