// Backward of one pair of blocks on AMX: scores and dP by tiles, P and dS in AVX-512, packed as pairs for the products
// of dq, dk and dv. Speed: attention.h.
#include "kernels/cpu/gemm/avx512_vector.h"
#include "ops/attention/amx/attention.h"
#include "ops/attention/amx/scores.h"

namespace hone::amx {

namespace {

/// A thread's scratch for a block.
struct Scratch {
  float *scores, *dscores;        ///< [kSlab, kGradTokens]; d loss / d probability in the second
  uint16_t* ds;                   ///< [kSlab, kGradTokens] of the current slab of queries
  std::byte *p_pairs, *ds_pairs;  ///< [slabs of queries][panels of keys] tiles of pairs

  explicit Scratch(std::byte* memory)
      : scores(reinterpret_cast<float*>(memory)),
        dscores(scores + kSlab * kGradTokens),
        ds(reinterpret_cast<uint16_t*>(dscores + kSlab * kGradTokens)),
        p_pairs(reinterpret_cast<std::byte*>(ds + kSlab * kGradTokens)),
        ds_pairs(p_pairs + kGradTokens * kGradTokens * 2) {}
};

constexpr int64_t kPairsSlab = kGradTokens / kLanes * kTileBytes;  ///< bytes of a slab of queries

/// Slabs of keys [from, to) of the block that a slab of queries attends to.
struct Strip {
  int64_t slab, rows;
  int64_t from, to;

  Strip(const GradBlock& b, int64_t number) : slab(number), rows(smaller(kSlab, b.queries.rows - number * kSlab)) {
    const int64_t first = first_seen(b.queries, slab * kSlab) - b.first_key;
    const int64_t last = position(b.queries, slab * kSlab + rows - 1) + 1 - b.first_key;
    from = first > 0 ? first / kSlab : 0;
    to = slabs_of(smaller(last, b.keys));
  }
  bool empty() const { return from >= to; }
};

struct InterleaveIndex {
  alignas(64) uint16_t word[32];
  constexpr InterleaveIndex() : word{} {
    for (int i = 0; i < 32; ++i) word[i] = static_cast<uint16_t>(i / 2 + i % 2 * 16);
  }
};
constexpr InterleaveIndex kInterleave;

/// Pairs of two rows, as a row of a right operand.
__m512i pair(__m512 first, __m512 second) {
  return _mm512_permutexvar_epi16(_mm512_load_si512(kInterleave.word), (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

/// The terms that convert a row's scores to P and dS.
struct RowTerms {
  __m512 less_lse, delta;

  RowTerms(const GradBlock& b, int64_t row) {
    constexpr float kLog2E = 1.44269504088896f;
    const bool exists = row < b.queries.rows;
    less_lse = _mm512_set1_ps(exists ? -kLog2E * b.lse[row] : 0.0f);
    delta = _mm512_set1_ps(exists ? b.delta[row] : 0.0f);
  }
  __m512 probability(__m512 score, __m512 scale) const { return exp2(_mm512_fmadd_ps(score, scale, less_lse)); }
  __m512 gradient(__m512 p, __m512 dp) const { return _mm512_mul_ps(p, _mm512_sub_ps(dp, delta)); }
};

/// Masks rows beyond the last one: their P and dS must be zero, since products sum over them.
void hide_unseen_of(const GradBlock& b, const Scratch& s, const Strip& strip) {
  const int64_t first = strip.from * kSlab, count = (strip.to - strip.from) * kSlab;
  for (int64_t r = 0; r < kSlab; ++r) {
    float* scores = s.scores + r * kGradTokens + first;
    if (r < strip.rows) {
      hide_unseen(scores, count, SeenKeys(b.queries, strip.slab * kSlab + r, b.first_key + first, count));
      continue;
    }
    for (int64_t c = 0; c < count; c += kLanes) {
      _mm512_store_ps(scores + c, _mm512_set1_ps(-kInfinity));
      _mm512_store_ps(s.dscores + r * kGradTokens + first + c, _mm512_setzero_ps());
    }
  }
}

void make_gradients(const GradBlock& b, const Scratch& s, const Strip& strip) {
  const __m512 scale = _mm512_set1_ps(b.scale);
  hide_unseen_of(b, s, strip);
  for (int64_t r = 0; r < kSlab; r += 2) {
    const RowTerms even(b, strip.slab * kSlab + r), odd(b, strip.slab * kSlab + r + 1);
    const float *scores = s.scores + r * kGradTokens, *dp = s.dscores + r * kGradTokens;
    std::byte* p_pairs = s.p_pairs + strip.slab * kPairsSlab + r / 2 * 64;
    std::byte* ds_pairs = s.ds_pairs + strip.slab * kPairsSlab + r / 2 * 64;
    for (int64_t c = strip.from * kSlab; c < strip.to * kSlab; c += kSlab) {
      __m512 ds[2][2];
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const int64_t at = c + half * kLanes;
        const __m512 p0 = even.probability(_mm512_load_ps(scores + at), scale);
        const __m512 p1 = odd.probability(_mm512_load_ps(scores + kGradTokens + at), scale);
        ds[0][half] = even.gradient(p0, _mm512_load_ps(dp + at));
        ds[1][half] = odd.gradient(p1, _mm512_load_ps(dp + kGradTokens + at));
        _mm512_store_si512(p_pairs + at / kLanes * kTileBytes, pair(p0, p1));
        _mm512_store_si512(ds_pairs + at / kLanes * kTileBytes, pair(ds[0][half], ds[1][half]));
      }
      uint16_t* rows = s.ds + r * kGradTokens + c;
      _mm512_store_si512(rows, (__m512i)_mm512_cvtne2ps_pbh(ds[0][1], ds[0][0]));
      _mm512_store_si512(rows + kGradTokens, (__m512i)_mm512_cvtne2ps_pbh(ds[1][1], ds[1][0]));
    }
  }
}

/// Computes P and dS of a slab of queries, and dq += dS k.
template <int Lefts>
void differentiate_strip(const GradBlock& b, const Scratch& s, const Strip& strip) {
  const std::byte* q = b.q + strip.slab * 2 * b.d_steps * kTileBytes;
  const std::byte* dout = b.dout + strip.slab * 2 * b.v_steps * kTileBytes;
  for (int64_t slab = strip.from; slab < strip.to; ++slab) {
    const int64_t column = slab * kSlab;
    score_tiles<Lefts>(q, b.k + slab * 2 * b.d_steps * kTileBytes, b.d_steps, s.scores + column, kGradTokens);
    score_tiles<Lefts>(dout, b.v + slab * 2 * b.v_steps * kTileBytes, b.v_steps, s.dscores + column, kGradTokens);
  }
  make_gradients(b, s, strip);
  if (b.dq == nullptr) return;
  const int64_t panels = 2 * b.d_steps;
  for (int64_t panel = 0; panel < panels; panel += 2) {
    add_product<2>({.left = reinterpret_cast<const std::byte*>(s.ds + strip.from * kSlab),
                    .left_panel = kLanes * kGradTokens * 2,
                    .left_step = kSlab * 2,
                    .left_row = kGradTokens * 2,
                    .right = b.k_rows + (strip.from * panels + panel) * kTileBytes,
                    .right_panel = kTileBytes,
                    .right_step = panels * kTileBytes,
                    .steps = strip.to - strip.from},
                   {.to = b.dq + (strip.slab * 2 * panels + panel) * kTileFloats,
                    .left_panel = panels * kTileFloats,
                    .right_panel = kTileFloats,
                    .row_bytes = 64,
                    .first = b.first_of_queries});
  }
}

/// sums [slabs of keys][panels][2] += columnsᵀ pairs, over the slabs of queries that attend to a slab of keys.
void add_columns(const GradBlock& b, const std::byte* columns, int64_t panels, const std::byte* pairs, float* sums) {
  const int64_t query_slabs = slabs_of(b.queries.rows);
  for (int64_t slab = 0; slab < slabs_of(b.keys); ++slab) {
    int64_t begin = query_slabs, end = 0;
    for (int64_t i = 0; i < query_slabs; ++i) {
      const Strip strip(b, i);
      if (slab < strip.from || slab >= strip.to) continue;
      begin = smaller(begin, i);
      end = i + 1;
    }
    if (begin >= end && !b.first_of_keys) continue;
    for (int64_t panel = 0; panel < panels; panel += 2) {
      add_product<2>({.left = columns + (begin * panels + panel) * kTileBytes,
                      .left_panel = kTileBytes,
                      .left_step = panels * kTileBytes,
                      .left_row = 64,
                      .right = pairs + begin * kPairsSlab + slab * 2 * kTileBytes,
                      .right_panel = kTileBytes,
                      .right_step = kPairsSlab,
                      .steps = end > begin ? end - begin : 0},
                     {.to = sums + (slab * panels + panel) * 2 * kTileFloats,
                      .left_panel = 2 * kTileFloats,
                      .right_panel = kTileFloats,
                      .row_bytes = 64,
                      .first = b.first_of_keys});
    }
  }
}

using Lanes = Avx512Vector;

void store_row(const GradRows& g, int64_t row, int64_t column, __m512 sums) {
  const __mmask16 mask = first_lanes(g.dim - column);
  const int64_t at = row * g.stride + column;
  __m512 value = _mm512_mul_ps(_mm512_set1_ps(g.scale), sums);
  if (g.is_bf16) {
    uint16_t* to = static_cast<uint16_t*>(g.to) + at;
    if (g.beta != 0.0f) {
      const __m512i before = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, to));
      value = _mm512_add_ps(value, _mm512_castsi512_ps(_mm512_slli_epi32(before, 16)));
    }
    return store_some(to, g.dim - column, value);
  }
  float* to = static_cast<float*>(g.to) + at;
  if (g.beta != 0.0f) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, to));
  _mm512_mask_storeu_ps(to, mask, value);
}

}  // namespace

void differentiate(const GradBlock& b) {
  configure_tiles();
  const Scratch scratch(b.scratch);
  for (int64_t i = 0; i < slabs_of(b.queries.rows); ++i) {
    const Strip strip(b, i);
    if (strip.empty()) continue;
    strip.rows > kLanes ? differentiate_strip<2>(b, scratch, strip) : differentiate_strip<1>(b, scratch, strip);
  }
  if (b.dv) add_columns(b, b.dout_columns, 2 * b.v_steps, scratch.p_pairs, b.dv);
  if (b.dk) add_columns(b, b.q_columns, 2 * b.d_steps, scratch.ds_pairs, b.dk);
}

void store_rows(const float* slab, const GradRows& g) {
  const int64_t panels = slabs_of(g.dim) * 2;
  for (int64_t row = 0; row < g.rows; ++row) {
    const float* from = slab + row / kLanes * panels * kTileFloats + row % kLanes * kLanes;
    for (int64_t column = 0; column < g.dim; column += kLanes, from += kTileFloats) {
      store_row(g, row, column, _mm512_load_ps(from));
    }
  }
}

void store_columns(const float* slab, const GradRows& g) {
  for (int64_t column = 0; column < g.dim; column += kLanes) {
    for (int64_t first = 0; first < g.rows; first += kLanes) {
      const float* tile = slab + (column / kLanes * 2 + first / kLanes) * kTileFloats;
      Lanes::U rows[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) rows[i] = Lanes::load_bits(tile + i * kLanes);
      Lanes::transpose(rows);
      for (int64_t i = 0; i < smaller(kLanes, g.rows - first); ++i) store_row(g, first + i, column, (__m512)rows[i]);
    }
  }
}

float dot(const uint16_t* x, const uint16_t* y, int64_t n) {
  const auto widened = [&](const uint16_t* p, int64_t i) {
    return Lanes::widened(_mm256_maskz_loadu_epi16(first_lanes(n - i), p + i));
  };
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += kLanes) sum = _mm512_fmadd_ps(widened(x, i), widened(y, i), sum);
  return _mm512_reduce_add_ps(sum);
}

}  // namespace hone::amx
