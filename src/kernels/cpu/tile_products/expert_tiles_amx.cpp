#include "kernels/cpu/tile_products/expert_tiles.h"

#include "kernels/cpu/tile_products/expert_task_amx.h"
#include "kernels/cpu/tile_products/packed_panels_amx.h"

namespace hone::amx {

namespace {

/// W is bfloat16, and so are the rows.
struct Bf16Format {
  static constexpr int64_t kStepDepth = kDepth;
  static constexpr int64_t kBlockDepth = amx::kBlockDepth;

  const TileTask& t;
  const Memory& memory;

  void pack_rows(const Span& chunk) const {
    pack(t.rows, TileOrder::kByLane, t.row, t.count, chunk.begin, chunk.count(), memory.rows);
  }
  PanelPair exact_rows(int64_t panel, const Span& k, const Span& chunk) const {
    const int64_t panel_bytes = steps_of(chunk.count()) * kTileBytes;
    const std::byte* rows = memory.rows + (k.begin - chunk.begin) / kDepth * kTileBytes;
    return {rows + panel * panel_bytes, panel_bytes, steps_of(k.count())};
  }
  const float* row_scales(const Span&) const { return memory.row_scales; }

  StripPanels weight_panels(int64_t col, int64_t strips, const Span& k) const {
    const int64_t panel_bytes = steps_of(k.count()) * kTileBytes, half = strips * kLanes;
    if (t.pair_offset == kLanes) {
      pack(t.weight, TileOrder::kByPair, col, 2 * half, k.begin, k.count(), memory.weight);
      return {memory.weight, panel_bytes, 2 * panel_bytes};
    }
    pack(t.weight, TileOrder::kByPair, col, half, k.begin, k.count(), memory.weight);
    pack(t.weight, TileOrder::kByPair, col + t.pair_offset, half, k.begin, k.count(),
         memory.weight + strips * panel_bytes);
    return {memory.weight, strips * panel_bytes, panel_bytes};
  }
  Prefetch prefetch(int64_t lane, int64_t lanes, const Span& k, int64_t steps) const {
    const Operand& w = t.weight;
    const char* at = static_cast<const char*>(w.data) + 2 * (lane * w.lane_stride + k.begin * w.depth_stride);
    if (depth_is_contiguous(w)) return Prefetch(at, lanes, 2 * w.lane_stride, 2 * k.count(), steps);
    return Prefetch(at, k.count(), 2 * w.depth_stride, 2 * lanes, steps);
  }

  template <int Lefts>
  void multiply(const BlockProduct& p, Prefetch& prefetch) const {
    multiply_block<Lefts>(p.rows, p.weight, p.low_rank, p.factor, p.first, p.sums, prefetch);
  }
  void finish() const {}
};

/// W is bfloat16 in tiles (tiled_weights.h), and the rows are bfloat16.
struct TiledFormat : Bf16Format {
  WeightInTiles weight() const { return {t, 2}; }

  StripPanels weight_panels(int64_t col, int64_t strips, const Span& k) const {
    if (weight().along_depth()) return weight().in_place(col, k);
    const int64_t steps = steps_of(k.count()), packed_bytes = steps * kTileBytes;
    for (int64_t n = 0; n < k.count(); n += kLanes) {
      const std::byte* from = weight().at(k.begin + n, col);
      std::byte* to = memory.weight + n / kDepth * kTileBytes + n % kDepth / kLanes * (kTileBytes / 2);
      for (int64_t panel = 0; panel < 2 * strips; ++panel, from += kTileBytes / 2, to += packed_bytes) {
        turn_half_tile(from, to);
      }
    }
    return {memory.weight, packed_bytes, 2 * packed_bytes};
  }
  Prefetch prefetch(int64_t lane, int64_t lanes, const Span& k, int64_t steps) const {
    return weight().prefetch(lane, lanes, k, steps);
  }

 private:
  /// Converts half a tile of W, 16 rows x 16 columns, to half a tile with columns as lanes: 8 rows of 16 columns x 2 n.
  /// A source row is 8 pairs of rows n of two columns each; these 64-bit units are transposed, then the pairs within
  /// them.
  [[gnu::always_inline]] static void turn_half_tile(const std::byte* from, std::byte* to) {
    const __m512i pairs = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter, to += 128) {
      const auto block = [&](int row) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 64 * row + 16 * quarter));
      };
      const auto four = [&](int row) {
        __m512i v = _mm512_castsi128_si512(block(row));
        v = _mm512_mask_broadcast_i32x4(v, 0x00f0, block(row + 2));
        v = _mm512_mask_broadcast_i32x4(v, 0x0f00, block(row + 4));
        return _mm512_mask_broadcast_i32x4(v, 0xf000, block(row + 6));
      };
      const __m512i even = four(0), odd = four(1);
      _mm512_store_si512(to, _mm512_shuffle_epi8(_mm512_maskz_unpacklo_epi64(0xff, even, odd), pairs));
      _mm512_store_si512(to + 64, _mm512_shuffle_epi8(_mm512_maskz_unpackhi_epi64(0xff, even, odd), pairs));
    }
  }
};

/// W is packed, its rows are k, and the rows are bfloat16.
struct PackedFormat : Bf16Format {
  PackedPanels weight{*t.packed, t.chunks};

  StripPanels weight_panels(int64_t col, int64_t strips, const Span& k) const {
    const int64_t panel_bytes = steps_of(k.count()) * kTileBytes;
    const bool more = k.end < t.depth;
    const PackedPlace next = more ? PackedPlace{k.end, col} : PackedPlace{0, col + strips * t.strip_stride};
    weight.pack_columns({k.begin, col}, k.count(), strips, next, panel_bytes, memory.weight);
    return {memory.weight, panel_bytes, 2 * panel_bytes};
  }
  Prefetch prefetch(int64_t lane, int64_t lanes, const Span& k, int64_t steps) const {
    return {weight.codes_of(k.begin, lane), k.count(), weight.row_bytes(), weight.code_bytes(lanes), steps};
  }
};

/// W is packed, and its rows are columns of C: tiles of W are left operands, those of the rows right ones.
struct TurnedPackedFormat : PackedFormat {
  void pack_rows(const Span& chunk) const {
    pack(t.rows, TileOrder::kByPair, t.row, t.count, chunk.begin, chunk.count(), memory.rows);
  }
  PanelPair exact_rows(int64_t panel, const Span& k, const Span&) const {
    const int64_t first = panel * kLanes, rows = smaller(2 * kLanes, t.count - first);
    pack(t.rows, TileOrder::kByLane, t.row + first, rows, k.begin, k.count(), memory.exact_rows);
    return {memory.exact_rows, steps_of(k.count()) * kTileBytes, steps_of(k.count())};
  }

  StripPanels weight_panels(int64_t col, int64_t strips, const Span& k) const {
    const int64_t panel_bytes = steps_of(k.count()) * kTileBytes;
    const int64_t ahead = k.end < t.depth ? 0 : strips * t.strip_stride, next_k = k.end < t.depth ? k.end : 0;
    std::byte* panel = memory.weight;
    for (int64_t i = 0; i < 2 * strips; ++i, panel += panel_bytes) {
      const int64_t n = col + i / 2 * t.strip_stride + i % 2 * t.pair_offset;
      weight.pack_rows({n, k.begin}, k.count(), {n + ahead, next_k}, panel);
    }
    return {memory.weight, panel_bytes, 2 * panel_bytes};
  }
  Prefetch prefetch(int64_t lane, int64_t lanes, const Span& k, int64_t steps) const {
    return {weight.codes_of(lane, k.begin), lanes, weight.row_bytes(), weight.code_bytes(k.count()), steps};
  }

  template <int Lefts>
  void multiply(const BlockProduct& p, Prefetch& prefetch) const {
    multiply_block<Lefts, true>(p.rows, p.weight, {}, {}, p.first, p.sums, prefetch);
    if (!p.last) return;
    for (int tile = 0; tile < 2 * Lefts; ++tile) turn_sums(p.sums + tile * kTileFloats);
    Prefetch none;
    if (p.low_rank.steps > 0) multiply_block<Lefts>(p.low_rank, p.factor, {}, {}, false, p.sums, none);
  }

 private:
  static void turn_sums(float* tile) {
    const void* rows[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) rows[i] = tile + i * kLanes;
    Avx512Vector::U columns[kLanes];
    Avx512Vector::load_transposed(rows, 0, columns);
    for (int64_t i = 0; i < kLanes; ++i) _mm512_store_si512(tile + i * kLanes, (__m512i)columns[i]);
  }
};

/// k of a tile.
int64_t step_depth(const TileTask& shape) { return block_depth(shape) / kBlockSteps; }

}  // namespace

int64_t most_rows(const TileTask& shape) {
  constexpr int64_t kLeastPanels = 4;  // with fewer, reading W costs more
  const int64_t steps = (shape.depth + step_depth(shape) - 1) / step_depth(shape);
  const int64_t panels = kMaxRowTiles / largest(steps, 1) / 2 * 2;
  const bool packed = is_int8(shape) || shape.weight_in_tiles;
  return packed ? smaller(kMaxTaskRows, largest(panels, kLeastPanels) * kLanes) : kMaxTaskRows;
}

int64_t chunk_depth(const TileTask& shape, int64_t rows) {
  const int64_t block = block_depth(shape), most = kMaxRowTiles / panels_of(rows) * step_depth(shape);
  return most >= shape.depth ? shape.depth : most / block * block;
}

int64_t workspace_bytes(const TileTask& shape) { return Memory(shape, nullptr).end - static_cast<std::byte*>(nullptr); }

void run_tiles(const TileTask& task, std::byte* workspace) {
  configure_tiles();
  if (is_int8(task)) return run_int8_tiles(task, workspace);
  if (task.packed != nullptr) {
    return depth_is_contiguous(task.weight) ? Task<TurnedPackedFormat>(task, workspace).run()
                                            : Task<PackedFormat>(task, workspace).run();
  }
  task.weight_in_tiles ? Task<TiledFormat>(task, workspace).run() : Task<Bf16Format>(task, workspace).run();
}

}  // namespace hone::amx
