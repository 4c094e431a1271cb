// The micro-kernels of AMX products: at most 2 x 2, 4 x 1 or 1 x 4 tiles of C in registers. One operand stays in L1,
// the other is streamed from L2, bypassing L1; accumulators stay in L2 between blocks of k.
//
// A tile product takes 16 cycles and has the latency of three others, so four accumulators keep the unit busy; 2 x 2
// needs one tile load per product. Speeds: amx_products.cpp. Tried without gain: streaming both operands from L2, 23 %
// slower on one core.
#include <immintrin.h>

#include "core/cpu/amx_registers.h"
#include "kernels/cpu/gemm/amx_fetch.h"
#include "kernels/cpu/gemm/amx_tiles.h"
#include "kernels/cpu/gemm/avx512_vector.h"

namespace hone::amx {

namespace {

using Vec = Avx512Vector;

/// Tiles of accumulators [left panels][across].
struct Sums {
  float* tiles = nullptr;
  int64_t across = 0;

  float* tile(int64_t l, int64_t r) const { return tiles + (l * across + r) * kTileFloats; }
};

/// Panels of an operand from a given one on, step by step.
struct Stream {
  const std::byte* at;
  int64_t panel_bytes, step_bytes, row_bytes;
};

Stream stream(const Panels& panels, int64_t panel) {
  return {panels.data + panel * panels.panel_bytes, panels.panel_bytes, panels.step_bytes, panels.row_bytes};
}

/// Prefetches during every step of a product: the next panels into L2, accumulators into L1.
struct Prefetcher {
  Fetch<kLevel2> panels;
  Fetch<kLevel1> sums;

  void operator()() { panels(), sums(); }
};

/// The operand that is streamed from L2 while the other one stays in L1.
enum class Passing { kNone, kLeft, kRight };

template <int Tile, bool Passes>
[[gnu::always_inline]] inline void load_operand(const void* rows, int64_t row_bytes) {
  if constexpr (Passes) {
    load_past_level_1<Tile>(rows, row_bytes);
  } else {
    load<Tile>(rows, row_bytes);
  }
}

/// The tiles of C that a kernel keeps in registers, at most four, since the latency of a product equals three others.
template <int Lefts, int Rights, Passing Side = Passing::kNone>
struct Kernel {
  static_assert(Lefts * Rights <= 4);
  /// Registers: the accumulators, then the operands; with a single tile on one side, the tiles of the other rotate
  /// through three registers.
  static constexpr int sums(int l, int r) { return l * Rights + r; }
  static constexpr int left(int l) { return Rights == 1 ? 5 + l % 3 : 4 + l; }
  static constexpr int right(int r) { return Rights == 1 ? 4 : Lefts == 1 ? 5 + r % 3 : 6 + r; }

  template <int L, int R>
  [[gnu::always_inline]] static void begin(Sums from) {
    if constexpr (L < Lefts && R < Rights) {
      from.tiles ? load<sums(L, R)>(from.tile(L, R), 64) : zero<sums(L, R)>();
    }
  }
  template <int L, int R>
  [[gnu::always_inline]] static void end(Sums to) {
    if constexpr (L < Lefts && R < Rights) store<sums(L, R)>(to.tile(L, R));
  }
  template <int L>
  [[gnu::always_inline]] static void load_left(Stream s) {
    if constexpr (L < Lefts) load_operand<left(L), Side == Passing::kLeft>(s.at + L * s.panel_bytes, s.row_bytes);
  }
  template <int R>
  [[gnu::always_inline]] static void load_right(Stream s) {
    if constexpr (R < Rights) load_operand<right(R), Side == Passing::kRight>(s.at + R * s.panel_bytes, s.row_bytes);
  }
  template <int L, int R>
  [[gnu::always_inline]] static void step() {
    if constexpr (L < Lefts && R < Rights) multiply_add<sums(L, R), left(L), right(R)>();
  }

  /// to = from + left x right, tiles [Lefts][Rights]; `from` may be null or equal to `to`. Prefetches in every step.
  [[gnu::always_inline]] static void run(Stream l, Stream r, int64_t steps, Sums from, Sums to, Prefetcher& fetch) {
    begin<0, 0>(from), begin<0, 1>(from), begin<0, 2>(from), begin<0, 3>(from);
    begin<1, 0>(from), begin<1, 1>(from), begin<2, 0>(from), begin<3, 0>(from);
    for (int64_t s = 0; s < steps; ++s, l.at += l.step_bytes, r.at += r.step_bytes) {
      load_left<0>(l), load_right<0>(r), step<0, 0>();
      load_right<1>(r), step<0, 1>();
      load_left<1>(l), step<1, 0>(), step<1, 1>();
      load_right<2>(r), step<0, 2>(), load_right<3>(r), step<0, 3>();
      load_left<2>(l), step<2, 0>(), load_left<3>(l), step<3, 0>();
      fetch();
    }
    end<0, 0>(to), end<0, 1>(to), end<0, 2>(to), end<0, 3>(to);
    end<1, 0>(to), end<1, 1>(to), end<2, 0>(to), end<3, 0>(to);
  }
};

/// 32 consecutive elements of a row of C, loaded from and stored to memory.
struct Pair {
  __m512 low, high;

  static Pair load(const float* c, __mmask32 mask) {
    return {_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), c),
            _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> kLanes), c + kLanes)};
  }
  static Pair load(const uint16_t* c, __mmask32 mask) {
    const __m512i words = _mm512_maskz_loadu_epi16(mask, c);
    return {Vec::widened(_mm512_castsi512_si256(words)), Vec::widened(_mm512_extracti64x4_epi64(words, 1))};
  }
  Pair plus(const Pair& other) const { return {_mm512_add_ps(low, other.low), _mm512_add_ps(high, other.high)}; }
  void store(float* c, __mmask32 mask) const {
    _mm512_mask_storeu_ps(c, static_cast<__mmask16>(mask), low);
    _mm512_mask_storeu_ps(c + kLanes, static_cast<__mmask16>(mask >> kLanes), high);
  }
  void store(uint16_t* c, __mmask32 mask) const {
    _mm512_mask_storeu_epi16(c, mask, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  }
};

void transpose(float* tile) {
  Vec::U rows[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = Vec::load_bits(tile + i * kLanes);
  Vec::transpose(rows);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) __builtin_memcpy(tile + i * kLanes, &rows[i], sizeof(rows[i]));
}

/// Writes `rows` x `cols` <= 32 to C at (row, col): scale * accumulators of two adjacent tiles + bias + beta * C +
/// addend.
template <class T>
void finish_rows(const GemmArgs& g, const float* low, const float* high, int64_t row, int64_t rows, int64_t col,
                 int64_t cols) {
  const __mmask32 mask = ~__mmask32{0} >> (2 * kLanes - cols);
  const __m512 alpha = _mm512_set1_ps(g.alpha), beta = _mm512_set1_ps(g.beta);
  const bool adds = g.beta != 0.0f;
  const int64_t ldc = g.ldc;
  T* c = static_cast<T*>(g.c) + row * ldc + col;
  const T* addend = g.addend ? static_cast<const T*>(g.addend) + row * ldc + col : nullptr;
  const Pair bias = g.bias ? Pair::load(static_cast<const T*>(g.bias) + col, mask) : Pair{};
  const float* row_scale = g.row_scale ? g.row_scale + row : nullptr;
#pragma GCC unroll 4
  for (int64_t i = 0; i < rows; ++i, c += ldc) {
    const __m512 scale = row_scale ? _mm512_set1_ps(g.alpha * row_scale[i]) : alpha;
    Pair value{_mm512_mul_ps(scale, _mm512_load_ps(low + i * kLanes)),
               _mm512_mul_ps(scale, _mm512_load_ps(high + i * kLanes))};
    if (g.bias) value = value.plus(bias);
    if (adds) {
      const Pair before = Pair::load(c, mask);
      value = {_mm512_fmadd_ps(beta, before.low, value.low), _mm512_fmadd_ps(beta, before.high, value.high)};
    }
    if (addend) value = value.plus(Pair::load(addend + i * ldc, mask));
    value.store(c, mask);
  }
}

/// Writes the tiles of left panels [l, l + lefts) and right panels [r, r + rights) to C.
void finish(const PanelProduct& p, Sums tiles, int64_t l, int64_t lefts, int64_t r, int64_t rights) {
  const int64_t first_row = (p.swapped ? r : l) * kLanes, first_col = (p.swapped ? l : r) * kLanes;
  const int64_t row_lanes = p.swapped ? p.right_lanes : p.left_lanes, row_lane = p.swapped ? p.right_lane : p.left_lane;
  const int64_t col_lanes = p.swapped ? p.left_lanes : p.right_lanes, col_lane = p.swapped ? p.left_lane : p.right_lane;
  const int64_t down = p.swapped ? rights : lefts, across = p.swapped ? lefts : rights;
  const auto tile = [&](int64_t i, int64_t j) { return p.swapped ? tiles.tile(j, i) : tiles.tile(i, j); };
  for (int64_t i = 0; i < down; ++i) {
    const int64_t row = first_row + i * kLanes, rows = smaller(kLanes, row_lanes - row);
    for (int64_t j = 0; j < across; j += 2) {
      float *const low = tile(i, j), *const high = j + 1 < across ? tile(i, j + 1) : low;
      if (p.swapped) transpose(low);
      if (p.swapped && high != low) transpose(high);
      const int64_t col = first_col + j * kLanes;
      const int64_t cols = smaller(j + 1 < across ? 2 * kLanes : kLanes, col_lanes - col);
      if (p.args->c_dtype == DType::kBF16) {
        finish_rows<uint16_t>(*p.args, low, high, row_lane + row, rows, col_lane + col, cols);
      } else {
        finish_rows<float>(*p.args, low, high, row_lane + row, rows, col_lane + col, cols);
      }
    }
  }
}

/// Multiplies left panels from l on by right panels from r on.
template <int Lefts, int Rights>
void multiply_panels(const PanelProduct& p, int64_t l, int64_t r, Prefetcher& fetch) {
  alignas(64) float tiles[Lefts * Rights * kTileFloats];
  const int64_t across = panels_of(p.right_lanes);
  const Sums kept{p.sums ? p.sums + (l * across + r) * kTileFloats : nullptr, across};
  const Sums finished{tiles, Rights};
  Kernel<Lefts, Rights>::run(stream(p.left, l), stream(p.right, r), p.steps, p.first ? Sums{} : kept,
                             p.last ? finished : kept, fetch);
  if (p.last) finish(p, finished, l, Lefts, r, Rights);
}

/// k of two panels that stays in L1 while the inner loop's panels are streamed.
constexpr int64_t kChunkSteps = 16;
/// Panels of an inner loop, which fit in L2 together with their accumulators.
constexpr int64_t kInnerPanels = 32;

Stream stream(const Panels& panels, int64_t panel, int64_t step) {
  Stream s = stream(panels, panel);
  s.at += step * s.step_bytes;
  return s;
}

/// Multiplies two panels of the outer side by those of the inner one, [begin, end), in chunks of k.
template <Passing Inner>
void multiply_chunks(const PanelProduct& p, int64_t outer, PanelRange inner, Prefetcher& fetch) {
  alignas(64) float memory[2 * kInnerPanels * kTileFloats];
  const int64_t across = panels_of(p.right_lanes), block_floats = 4 * kTileFloats;
  for (int64_t step = 0; step < p.steps; step += kChunkSteps) {
    const int64_t steps = smaller(kChunkSteps, p.steps - step);
    const bool first = step == 0, last = step + steps == p.steps;
    float* tiles = memory;
    for (int64_t i = inner.begin; i < inner.end; i += 2, tiles += block_floats) {
      const int64_t l = Inner == Passing::kLeft ? i : outer, r = Inner == Passing::kLeft ? outer : i;
      const Sums here{tiles, 2};
      const Sums kept{p.sums ? p.sums + (l * across + r) * kTileFloats : nullptr, across};
      const Sums from = !first ? here : p.first ? Sums{} : kept, to = last && !p.last ? kept : here;
      if (!first && i + 2 < inner.end) fetch.sums = fetch_sums(tiles + block_floats, block_floats, steps);
      Kernel<2, 2, Inner>::run(stream(p.left, l, step), stream(p.right, r, step), steps, from, to, fetch);
      if (last && p.last) finish(p, here, l, 2, r, 2);
    }
  }
}

/// Multiplies two panels of the outer side by a range of the inner one.
void multiply_pair(const PanelProduct& p, int64_t outer, PanelRange inner, Prefetcher& fetch) {
  if (p.steps > kChunkSteps) {
    return p.swapped ? multiply_chunks<Passing::kLeft>(p, outer, inner, fetch)
                     : multiply_chunks<Passing::kRight>(p, outer, inner, fetch);
  }
  for (int64_t i = inner.begin; i < inner.end; i += 2) {
    p.swapped ? multiply_panels<2, 2>(p, i, outer, fetch) : multiply_panels<2, 2>(p, outer, i, fetch);
  }
}

/// Multiplies one left panel by a range of right panels, four at a time.
void multiply_row(const PanelProduct& p, int64_t l, PanelRange right) {
  Prefetcher none;
  int64_t r = right.begin;
  for (; r + 4 <= right.end; r += 4) multiply_panels<1, 4>(p, l, r, none);
  if (right.end - r == 3) multiply_panels<1, 3>(p, l, r, none);
  if (right.end - r == 2) multiply_panels<1, 2>(p, l, r, none);
  if (right.end - r == 1) multiply_panels<1, 1>(p, l, r, none);
}

void multiply_column(const PanelProduct& p, PanelRange left, int64_t r) {
  Prefetcher none;
  int64_t l = left.begin;
  for (; l + 4 <= left.end; l += 4) multiply_panels<4, 1>(p, l, r, none);
  if (left.end - l == 3) multiply_panels<3, 1>(p, l, r, none);
  if (left.end - l == 2) multiply_panels<2, 1>(p, l, r, none);
  if (left.end - l == 1) multiply_panels<1, 1>(p, l, r, none);
}

/// Prefetches the two panels from `panel` on during `products` products, if their bytes are contiguous.
Prefetcher fetch_two(const Panels& panels, int64_t panel, int64_t end, int64_t products) {
  if (panel >= end || panels.row_bytes != 64) return {};
  const std::byte* at = panels.data + panel * panels.panel_bytes;
  return {{at, at + smaller(2, end - panel) * panels.panel_bytes, 32 / (products > 0 ? products : 1) + 1}, {}};
}

}  // namespace

void multiply(const PanelProduct& product, PanelRange left, PanelRange right) {
  configure_tiles();
  const int64_t even_left = left.end - (left.end - left.begin) % 2;
  const int64_t even_right = right.end - (right.end - right.begin) % 2;
  // Panels that are columns of C are the inner loop: C is written along its rows.
  const PanelRange outer = product.swapped ? PanelRange{right.begin, even_right} : PanelRange{left.begin, even_left};
  const PanelRange inner = product.swapped ? PanelRange{left.begin, even_left} : PanelRange{right.begin, even_right};
  const Panels& outer_panels = product.swapped ? product.right : product.left;
  const int64_t fitting = kInnerBytes / ((product.steps > 0 ? product.steps : 1) * kTileBytes) / 2 * 2;
  const int64_t run = fitting < 2 ? 2 : smaller(fitting, kInnerPanels);
  for (int64_t i = inner.begin; i < inner.end; i += run) {
    const PanelRange part{i, smaller(i + run, inner.end)};
    for (int64_t o = outer.begin; o < outer.end; o += 2) {
      Prefetcher fetch = fetch_two(outer_panels, o + 2, outer.end, (part.end - part.begin) / 2);
      multiply_pair(product, o, part, fetch);
    }
  }
  if (even_left < left.end) multiply_row(product, even_left, {right.begin, even_right});
  if (even_right < right.end) multiply_column(product, left, even_right);
}

}  // namespace hone::amx
