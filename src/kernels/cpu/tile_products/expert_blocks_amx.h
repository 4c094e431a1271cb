// Products of two panels of rows with two of columns, with prefetches. Included only by files that are compiled for
// AMX.
#pragma once

#include <immintrin.h>

#include "core/cpu/amx_registers.h"
#include "kernels/cpu/gemm/amx_fetch.h"
#include "kernels/cpu/gemm/amx_tiles.h"
#include "kernels/cpu/gemm/avx512_vector.h"

namespace hone::amx {
namespace {

constexpr int64_t kBlockFloats = 4 * kTileFloats;

/// Prefetches the lines of a block of W one by one into L2.
class Prefetch {
 public:
  Prefetch() = default;
  /// `rows` rows of `row_bytes`, `stride` bytes apart, within `steps` steps. Rows are rounded up to 2^n lines, so that
  /// computing an address needs no branch.
  Prefetch(const char* data, int64_t rows, int64_t stride, int64_t row_bytes, int64_t steps)
      : data_(data), stride_(stride) {
    while ((kLine << shift_) < row_bytes) ++shift_;
    each_ = ((rows << shift_) + steps - 1) / steps;
  }
  [[gnu::always_inline]] void step() {
    for (const int64_t end = line_ + each_; line_ < end; ++line_) {
      const int64_t in_row = line_ & ((int64_t{1} << shift_) - 1);
      _mm_prefetch(data_ + (line_ >> shift_) * stride_ + in_row * kLine, _MM_HINT_T1);
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  const char* data_ = nullptr;
  int64_t stride_ = 0, line_ = 0, each_ = 0;
  int shift_ = 0;
};

template <int Sums, int Left, int Right, bool Int8, bool Turned>
[[gnu::always_inline]] inline void multiply_add_turned() {
  Turned ? multiply_add<Sums, Right, Left, Int8>() : multiply_add<Sums, Left, Right, Int8>();
}

/// Two panels of an operand, with tiles in increasing k.
struct PanelPair {
  const std::byte* data;
  int64_t panel_bytes, steps;
};

/// Tile registers 0 to 3, the accumulators [Lefts][2], += left x right, for one or two left panels, which are streamed
/// past a right operand in L1. `beside` is called at each step. `Turned`: the panels on the left are right operands,
/// and those on the right left ones; accumulators are transposed.
template <int Lefts, bool Int8, bool Turned = false, class Beside>
[[gnu::always_inline]] inline void accumulate(const PanelPair& left, const PanelPair& right, Beside&& beside) {
  const std::byte *l = left.data, *r = right.data;
  const int64_t next_left = left.panel_bytes, next_right = right.panel_bytes;
  for (int64_t s = 0; s < left.steps; ++s, l += kTileBytes, r += kTileBytes) {
    load_past_level_1<4>(l, 64), load<6>(r, 64), multiply_add_turned<0, 4, 6, Int8, Turned>();
    load<7>(r + next_right, 64), multiply_add_turned<1, 4, 7, Int8, Turned>();
    if constexpr (Lefts == 2) {
      load_past_level_1<5>(l + next_left, 64), multiply_add_turned<2, 5, 6, Int8, Turned>();
      multiply_add_turned<3, 5, 7, Int8, Turned>();
    }
    beside();
  }
}

template <int Lefts>
[[gnu::always_inline]] inline void zero_sums() {
  zero<0>(), zero<1>();
  if constexpr (Lefts == 2) zero<2>(), zero<3>();
}
/// Stores accumulators as tiles of float32 or int32.
template <int Lefts, class T>
[[gnu::always_inline]] inline void store_sums(T* sums) {
  store<0>(sums), store<1>(sums + kTileFloats);
  if constexpr (Lefts == 2) store<2>(sums + 2 * kTileFloats), store<3>(sums + 3 * kTileFloats);
}

/// sums (= or +=) left x right + low_rank x factor, in bfloat16. `Turned` (accumulate()): without a low-rank part.
template <int Lefts, bool Turned = false>
void multiply_block(const PanelPair& left, const PanelPair& right, const PanelPair& low_rank, const PanelPair& factor,
                    bool first, float* sums, Prefetch& prefetch) {
  if (first) {
    zero_sums<Lefts>();
  } else {
    load<0>(sums, 64), load<1>(sums + kTileFloats, 64);
    if constexpr (Lefts == 2) load<2>(sums + 2 * kTileFloats, 64), load<3>(sums + 3 * kTileFloats, 64);
  }
  Prefetch fetch = prefetch;  // in registers
  // The accumulators of the next block.
  Fetch<kLevel1> next = fetch_sums(sums + kBlockFloats, kBlockFloats, left.steps);
  const auto beside = [&]() __attribute__((always_inline)) { fetch.step(), next(); };
  accumulate<Lefts, false, Turned>(left, right, beside);
  if constexpr (!Turned) accumulate<Lefts, false>(low_rank, factor, beside);
  prefetch = fetch;
  store_sums<Lefts>(sums);
}

}  // namespace
}  // namespace hone::amx
