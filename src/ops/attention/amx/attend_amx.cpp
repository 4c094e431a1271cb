// Forward of one block on AMX: scores of 32 rows by up to 256 keys, an online softmax in AVX-512, and the product with
// v. Speed: attention.h.
#include "ops/attention/amx/attention.h"
#include "ops/attention/amx/scores.h"

namespace hone::amx {

namespace {

/// A slab of rows against keys [from, to), multiples of kSlab.
struct Strip {
  int64_t row, rows;
  int64_t from, to;
};

/// Converts a row of scores to bfloat16 probabilities in place, and rescales the row's state to the new maximum.
void softmax_row(const AttendBlock& b, float* scores, int64_t row, const Strip& strip) {
  const int64_t count = strip.to - strip.from;
  const SeenKeys seen(b.queries, row, strip.from, count);
  uint16_t* p = reinterpret_cast<uint16_t*>(scores);
  if (seen.begin >= seen.end) return clear(p, count);
  hide_unseen(scores, count, seen);
  __m512 even = _mm512_load_ps(scores), odd = _mm512_load_ps(scores + kLanes);
  for (int64_t c = kSlab; c < count; c += kSlab) {
    even = _mm512_max_ps(even, _mm512_load_ps(scores + c));
    odd = _mm512_max_ps(odd, _mm512_load_ps(scores + c + kLanes));
  }
  const float before = b.largest[row], highest = b.scale * _mm512_reduce_max_ps(_mm512_max_ps(even, odd));
  const float largest = highest > before ? highest : before;
  const __m512 scale = _mm512_set1_ps(b.scale), offset = _mm512_set1_ps(-largest);
  __m512 sum = _mm512_load_ps(b.sums + row * kLanes), more = _mm512_setzero_ps();
  if (largest != before) {
    const __m512 correction = exp2(_mm512_set1_ps(before - largest));
    sum = _mm512_mul_ps(sum, correction);
    float* out = b.out + row * b.v_panels * kLanes;
    for (int64_t c = 0; c < b.v_panels; ++c) {
      _mm512_store_ps(out + c * kLanes, _mm512_mul_ps(correction, _mm512_load_ps(out + c * kLanes)));
    }
    b.largest[row] = largest;
  }
  for (int64_t c = 0; c < count; c += kSlab) {
    const __m512 low = exp2(_mm512_fmadd_ps(_mm512_load_ps(scores + c), scale, offset));
    const __m512 high = exp2(_mm512_fmadd_ps(_mm512_load_ps(scores + c + kLanes), scale, offset));
    sum = _mm512_add_ps(sum, low);
    more = _mm512_add_ps(more, high);
    _mm512_store_si512(p + c, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  }
  _mm512_store_ps(b.sums + row * kLanes, _mm512_add_ps(sum, more));
}

/// scores = q kᵀ
template <int Lefts>
void multiply_keys(const AttendBlock& b, const Strip& strip) {
  const std::byte* q = b.q + strip.row / kLanes * b.d_steps * kTileBytes;
  const int64_t panel = b.d_steps * kTileBytes;
  const std::byte* k = b.k + strip.from / kLanes * panel;
  for (int64_t c = 0; c < strip.to - strip.from; c += kSlab, k += 2 * panel) {
    score_tiles<Lefts>(q, k, b.d_steps, b.scores + c, kKeysAtOnce);
  }
}

/// out += p v
template <int Lefts>
void add_values(const AttendBlock& b, const Strip& strip) {
  constexpr int64_t kRowBytes = kKeysAtOnce * 4;
  const int64_t stride = b.v_panels * kLanes, slab = b.v_panels * kTileBytes;
  const std::byte* v = b.v + strip.from / kSlab * slab;
  for (int64_t panel = 0; panel < b.v_panels; panel += 2) {
    add_product<Lefts>({.left = reinterpret_cast<const std::byte*>(b.scores),
                        .left_panel = kLanes * kRowBytes,
                        .left_step = kSlab * 2,
                        .left_row = kRowBytes,
                        .right = v + panel * kTileBytes,
                        .right_panel = kTileBytes,
                        .right_step = slab,
                        .steps = (strip.to - strip.from) / kSlab},
                       {.to = b.out + strip.row * stride + panel * kLanes,
                        .left_panel = kLanes * stride,
                        .right_panel = kLanes,
                        .row_bytes = stride * 4,
                        .first = false});
  }
}

template <int Lefts>
void attend_strip(const AttendBlock& b, const Strip& strip) {
  multiply_keys<Lefts>(b, strip);
  for (int64_t r = 0; r < strip.rows; ++r) softmax_row(b, b.scores + r * kKeysAtOnce, strip.row + r, strip);
  add_values<Lefts>(b, strip);
}

}  // namespace

void attend(const AttendBlock& b) {
  configure_tiles();
  const int64_t rows = b.queries.rows, padded = slabs_of(rows) * kSlab;
  const __m512 none = _mm512_setzero_ps();
  for (int64_t i = 0; i < padded * b.v_panels; ++i) _mm512_store_ps(b.out + i * kLanes, none);
  for (int64_t row = 0; row < rows; ++row) {
    _mm512_store_ps(b.sums + row * kLanes, none);
    b.largest[row] = -kInfinity;
  }
  const int64_t last = position(b.queries, rows - 1);
  for (int64_t key = first_seen(b.queries, 0) / kSlab * kSlab; key <= last; key += kKeysAtOnce) {
    for (int64_t row = 0; row < rows; row += kSlab) {
      const int64_t count = smaller(kSlab, rows - row),
                    end = slabs_of(position(b.queries, row + count - 1) + 1) * kSlab;
      const int64_t begin = first_seen(b.queries, row) / kSlab * kSlab;
      const Strip strip{row, count, begin > key ? begin : key, smaller(key + kKeysAtOnce, end)};
      if (strip.from >= strip.to) continue;
      count > kLanes ? attend_strip<2>(b, strip) : attend_strip<1>(b, strip);
    }
  }
}

float finish_row(const AttendBlock& b, int64_t row, uint16_t* out, int64_t dim) {
  const float sum = _mm512_reduce_add_ps(_mm512_load_ps(b.sums + row * kLanes));
  const __m512 inverse = _mm512_set1_ps(1.0f / sum);
  const float* from = b.out + row * b.v_panels * kLanes;
  for (int64_t c = 0; c < dim; c += kLanes) {
    store_some(out + c, dim - c, _mm512_mul_ps(inverse, _mm512_load_ps(from + c)));
  }
  return sum;
}

}  // namespace hone::amx
