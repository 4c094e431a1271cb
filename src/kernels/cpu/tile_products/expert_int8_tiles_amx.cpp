#include "kernels/cpu/tile_products/expert_task_amx.h"
#include "kernels/cpu/tile_products/int8_panels_amx.h"

namespace hone::amx {

namespace {

/// Products of a block that are added to its sums: sums (= or +=) products, each times the scales of its row and its
/// column. They are added during the products of the next block, some rows at each step, since tile instructions leave
/// the vector units idle.
class ScaledSums {
 public:
  ScaledSums() = default;
  ScaledSums(const BlockProduct& p, const int32_t* products, int64_t rows, const float* low, const float* high)
      : from_(products),
        to_(p.sums),
        row_scales_(p.row_scales),
        low_(low ? _mm512_loadu_ps(low) : _mm512_set1_ps(1.0f)),
        high_(high ? _mm512_loadu_ps(high) : _mm512_set1_ps(1.0f)),
        rows_(rows),
        first_(p.first) {}

  /// Number of rows that step() must add to finish within `steps` steps.
  int64_t rows_within(int64_t steps) const { return (rows_ - row_ + steps - 1) / steps; }
  [[gnu::always_inline]] void step(int64_t rows) {
    for (const int64_t end = smaller(row_ + rows, rows_); row_ < end; ++row_) {
      const int64_t at = row_ / kLanes * 2 * kTileFloats + row_ % kLanes * kLanes;
      const __m512 scale = _mm512_set1_ps(row_scales_[row_]);
      add(at, _mm512_mul_ps(scale, low_));
      add(at + kTileFloats, _mm512_mul_ps(scale, high_));
    }
  }
  void finish() { step(rows_); }

 private:
  [[gnu::always_inline]] void add(int64_t at, __m512 scale) const {
    const __m512 value = _mm512_cvtepi32_ps(_mm512_load_si512(from_ + at));
    const __m512 before = first_ ? _mm512_setzero_ps() : _mm512_load_ps(to_ + at);
    _mm512_store_ps(to_ + at, _mm512_fmadd_ps(value, scale, before));
  }

  const int32_t* from_ = nullptr;
  float* to_ = nullptr;
  const float* row_scales_ = nullptr;
  __m512 low_ = {}, high_ = {};
  int64_t row_ = 0, rows_ = 0;
  bool first_ = true;
};

/// W is int8, and the rows are rounded to int8.
class Int8Format {
 public:
  static constexpr int64_t kStepDepth = kInt8Depth;
  static constexpr int64_t kBlockDepth = kInt8BlockDepth;

  Int8Format(const TileTask& task, const Memory& workspace) : t_(task), memory_(workspace), weight_(task, 1) {}

  /// Scales of the task's rows in the block that starts at k.
  float* row_scales(const Span& k) const { return memory_.row_scales + k.begin / kBlockDepth * kMaxTaskRows; }

  void pack_rows(const Span& chunk) const {
    const int64_t panel_bytes = chunk.count() / kInt8Depth * kTileBytes;
    for (Span k{chunk.begin, 0}; k.begin < chunk.end; k.begin = k.end) {
      k.end = smaller(k.begin + kBlockDepth, chunk.end);
      const float* scales = t_.depth_scales ? t_.depth_scales + k.begin : nullptr;
      std::byte* tiles = memory_.rows + (k.begin - chunk.begin) / kInt8Depth * kTileBytes;
      for (int64_t i = 0; i < t_.count; ++i) {
        const uint16_t* next = row(smaller(i + kRowsAhead, t_.count - 1)) + k.begin;
        row_scales(k)[i] =
            round_row(row(i) + k.begin, scales, k.count(), i % kLanes, next, tiles + i / kLanes * panel_bytes);
      }
    }
  }

  PanelPair exact_rows(int64_t panel, const Span& k, const Span&) const {
    const int64_t first = panel * kLanes, rows = smaller(2 * kLanes, t_.count - first);
    pack(t_.rows, TileOrder::kByLane, t_.row + first, rows, k.begin, k.count(), memory_.exact_rows);
    return {memory_.exact_rows, steps_of(k.count()) * kTileBytes, steps_of(k.count())};
  }

  StripPanels weight_panels(int64_t col, int64_t strips, const Span& k) const {
    if (weight_.along_depth()) return weight_.in_place(col, k);
    const int64_t steps = k.count() / kInt8Depth, packed_bytes = steps * kTileBytes;
    for (int64_t step = 0; step < steps; ++step) {
      const std::byte* from = weight_.at(k.begin + step * kInt8Depth, col);
      std::byte* to = memory_.weight + step * kTileBytes;
      for (int64_t quarter = 0; quarter < 2 * strips; ++quarter, to += packed_bytes) {
        turn_tile(from + quarter * (kTileBytes / 4), weight_.panel_bytes(), to);
      }
    }
    return {memory_.weight, packed_bytes, 2 * packed_bytes};
  }
  Prefetch prefetch(int64_t lane, int64_t lanes, const Span& k, int64_t steps) const {
    return weight_.prefetch(lane, lanes, k, steps);
  }

  template <int Lefts>
  void multiply(const BlockProduct& p, Prefetch& prefetch) {
    int32_t* products = products_[turn_];
    turn_ = 1 - turn_;
    multiply_exactly<Lefts>(p.rows, p.weight, products, prefetch);
    pending_ = ScaledSums(p, products, Lefts * kLanes, t_.column_scales ? t_.column_scales + p.col : nullptr,
                          t_.column_scales ? t_.column_scales + p.col + t_.pair_offset : nullptr);
    if (p.low_rank.steps > 0) {
      finish();
      Prefetch none;
      multiply_block<Lefts>(p.low_rank, p.factor, {}, {}, false, p.sums, none);
    }
  }
  void finish() { pending_.finish(); }

 private:
  static constexpr int64_t kRowsAhead = 4;  ///< a row is fetched while the fourth before it is rounded

  const uint16_t* row(int64_t i) const {
    const int64_t lane = t_.row + i;
    return static_cast<const uint16_t*>(t_.rows.data) +
           (t_.rows.lane_index ? t_.rows.lane_index[lane] : lane) * t_.rows.lane_stride;
  }

  /// products = left x right, tiles [Lefts][2].
  template <int Lefts>
  void multiply_exactly(const PanelPair& left, const PanelPair& right, int32_t* products, Prefetch& prefetch) {
    Prefetch fetch = prefetch;  // in registers
    ScaledSums before = pending_;
    const int64_t rows = before.rows_within(left.steps);
    zero_sums<Lefts>();
    accumulate<Lefts, true>(
        left, right, [&]() __attribute__((always_inline)) { fetch.step(), before.step(rows); });
    prefetch = fetch;
    store_sums<Lefts>(products);
  }

  const TileTask& t_;
  const Memory& memory_;
  const WeightInTiles weight_;
  alignas(64) int32_t products_[2][kBlockFloats];  ///< the last block, read by pending_, and the next
  int turn_ = 0;
  ScaledSums pending_;
};

}  // namespace

void run_int8_tiles(const TileTask& task, std::byte* workspace) { Task<Int8Format>(task, workspace).run(); }

}  // namespace hone::amx
