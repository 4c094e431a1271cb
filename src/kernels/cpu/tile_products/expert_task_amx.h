// The loops of a task of expert_tiles.h: packing and multiplication of rows, weights and adapters in order, and the
// epilogue. Included only by files that are compiled for AMX, one for each format of W.
#pragma once

#include "kernels/cpu/tile_products/expert_blocks_amx.h"
#include "kernels/cpu/tile_products/expert_tiles.h"

namespace hone::amx {
namespace {

/// More accumulators would not fit in L2 together with the rows, with two threads per core.
constexpr int64_t kMaxStripsFinished = 8;

int64_t largest(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t low_rank_strips(int64_t depth) { return (depth + kStripLanes - 1) / kStripLanes; }

float widened(float x) { return x; }
float widened(uint16_t bits) { return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16); }

template <class T>
void scale_as(float scale, const Values& v, int64_t begin, int64_t count, float* to) {
  const T* from = static_cast<const T*>(v.data) + begin;
  for (int64_t i = 0; i < count; ++i) to[i] = scale * widened(from[i]);
}
/// to = scale * elements [begin, begin + count)
void scale_row(float scale, const Values& v, int64_t begin, int64_t count, float* to) {
  v.is_bf16 ? scale_as<uint16_t>(scale, v, begin, count, to) : scale_as<float>(scale, v, begin, count, to);
}

/// A range of k or of strips.
struct Span {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

/// Whether the rows are packed in another way than the projections of L need them.
inline bool packs_rows_twice(const TileTask& task) { return task.weight.dtype == DType::kI8 || task.packed != nullptr; }
inline bool is_int8(const TileTask& task) { return task.weight.dtype == DType::kI8; }
inline int64_t block_depth(const TileTask& task) { return is_int8(task) ? kInt8BlockDepth : kBlockDepth; }

/// The workspace of a task.
struct Memory {
  std::byte *rows, *weight, *low_rank, *factor, *projection, *exact_rows;
  float *sums, *factor_values, *row, *row_scales, *low_rank_sums, *low_rank_rows;

  Memory(const TileTask& task, std::byte* at) {
    const auto take = [&](int64_t bytes) {
      std::byte* here = at;
      at += (bytes + 63) / 64 * 64;
      return here;
    };
    const auto take_floats = [&](int64_t count) { return reinterpret_cast<float*>(take(count * 4)); };
    const int64_t depth = task.low_rank.depth, low_rank_bytes = steps_of(depth) * kTileBytes;
    const int64_t blocks = (task.depth + kInt8BlockDepth - 1) / kInt8BlockDepth;
    sums = take_floats(kMaxTaskSums);
    rows = take(kMaxRowTiles * kTileBytes);
    weight = take(kStripsTogether * 2 * kBlockSteps * kTileBytes);
    row_scales = take_floats(is_int8(task) ? blocks * kMaxTaskRows : 0);
    low_rank = take(kMaxTaskRows / kLanes * low_rank_bytes);
    factor = take(2 * low_rank_bytes);
    factor_values = take_floats(kLanes * largest(depth, block_depth(task)));
    projection = take(low_rank_strips(depth) * 2 * steps_of(block_depth(task)) * kTileBytes);
    exact_rows = take(packs_rows_twice(task) && depth > 0 ? 2 * steps_of(kInt8BlockDepth) * kTileBytes : 0);
    low_rank_sums = take_floats(kMaxTaskRows * low_rank_strips(depth) * kStripLanes);
    low_rank_rows = take_floats(kMaxTaskRows * depth);
    row = take_floats(kMaxStripsFinished * kStripLanes);
    end = at;
  }
  std::byte* end;
};

/// Position of a packed block of k for some strips: the first panel of the first strip, and the distances to its second
/// panel and to the next strip.
struct StripPanels {
  const std::byte* first;
  int64_t to_second, to_next_strip;
};

/// W as tiles in panels of 16 rows, at the positions of its rows in a plain matrix (tiled_weights.h, int8_weights.h).
class WeightInTiles {
 public:
  WeightInTiles(const TileTask& task, int64_t element_bytes)
      : t_(task),
        along_depth_(depth_is_contiguous(task.weight)),
        element_bytes_(element_bytes),
        panel_bytes_(kLanes * element_bytes * (along_depth_ ? task.weight.lane_stride : task.weight.depth_stride)) {}

  /// Whether rows of W are columns of C, so that its tiles are read in place; else they are k, and tiles are
  /// transposed.
  bool along_depth() const { return along_depth_; }
  /// Bytes from 16 rows of W to the next 16.
  int64_t panel_bytes() const { return panel_bytes_; }
  /// Row n of W, a multiple of 16, from a column on that starts a row of a tile.
  const std::byte* at(int64_t n, int64_t column) const {
    return static_cast<const std::byte*>(t_.weight.data) + n / kLanes * panel_bytes_ + column * kLanes * element_bytes_;
  }
  StripPanels in_place(int64_t col, const Span& k) const {
    return {at(col, k.begin), t_.pair_offset / kLanes * panel_bytes_, t_.strip_stride / kLanes * panel_bytes_};
  }
  Prefetch prefetch(int64_t lane, int64_t lanes, const Span& k, int64_t steps) const {
    const std::byte* first = along_depth_ ? at(lane, k.begin) : at(k.begin, lane);
    const int64_t panels = (along_depth_ ? lanes : k.count()) / kLanes;
    return Prefetch(reinterpret_cast<const char*>(first), panels, panel_bytes_,
                    kLanes * element_bytes_ * (along_depth_ ? k.count() : lanes), steps);
  }

 private:
  const TileTask& t_;
  bool along_depth_;
  int64_t element_bytes_, panel_bytes_;
};

/// Two panels of rows by the two panels of a strip, for a block of k.
struct BlockProduct {
  PanelPair rows, weight;
  PanelPair low_rank, factor;  ///< no steps except in the last block
  bool first, last;            ///< initializes the sums; completes them
  float* sums;                 ///< [2][2][16][16]
  const float* row_scales;     ///< [2][16], for int8
  int64_t col;                 ///< column of the strip's first panel
};

/// `Format` is the format of W and of the rows it is multiplied with:
///   kStepDepth           k of a tile
///   kBlockDepth          k of a block
///   pack_rows(chunk)     packs rows to memory.rows, for k of a chunk
///   exact_rows(…)        two panels of the rows as bfloat16, for a block
///   row_scales(block)    scales of the rows if they are rounded
///   weight_panels(…)     W for some strips and a block
///   prefetch(…)          prefetch for weight_panels()
///   multiply<Lefts>(…)   a BlockProduct of one or two panels of rows
///   finish()             completes the sums of earlier calls of multiply()
template <class Format>
class Task {
 public:
  Task(const TileTask& task, std::byte* workspace)
      : t_(task),
        memory_(task, workspace),
        format_{task, memory_},
        panels_(panels_of(task.count)),
        low_rank_steps_(steps_of(task.low_rank.depth)),
        chunk_(chunk_depth(task, task.count)),
        finished_together_(
            smaller(kMaxStripsFinished, kMaxTaskSums / strip_sums() / kStripsTogether * kStripsTogether)) {}

  void run() {
    for (int64_t k = 0; k < t_.depth; k += chunk_) {
      const Span chunk{k, smaller(k + chunk_, t_.depth)};
      const bool last = chunk.end == t_.depth;
      if (!t_.rows_packed) pack_rows(chunk);
      for (int64_t strip = 0; strip < t_.strips; strip += finished_together_) {
        const Span finished{strip, smaller(strip + finished_together_, t_.strips)};
        for (int64_t i = finished.begin; i < finished.end; i += kStripsTogether) {
          const Span strips{i, smaller(i + kStripsTogether, finished.end)};
          for (Span block = block_at(k, chunk); block.count() > 0; block = block_at(block.end, chunk)) {
            multiply_strips(strips, block, chunk);
          }
        }
        format_.finish();
        if (last) finish(finished);
      }
    }
  }

 private:
  static Span block_at(int64_t k, const Span& chunk) { return {k, smaller(k + Format::kBlockDepth, chunk.end)}; }

  bool pairs_are_neighbours() const { return t_.pair_offset == kLanes; }
  int64_t column(int64_t strip) const { return t_.col + strip * t_.strip_stride; }
  /// Tiles of sums: [strips][pairs of row panels][2][2][16][16], of all strips if they are kept across chunks.
  float* sums(int64_t strip, int64_t panel) const {
    if (chunk_ >= t_.depth) strip %= finished_together_;
    return memory_.sums + strip * strip_sums() + panel / 2 * kBlockFloats;
  }
  int64_t strip_sums() const { return (panels_ + 1) / 2 * kBlockFloats; }

  /// Packs the rows for a chunk of k, and L after the last chunk.
  void pack_rows(const Span& chunk) const {
    format_.pack_rows(chunk);
    if (t_.low_rank.projection_count > 0) {
      for (Span block = block_at(chunk.begin, chunk); block.count() > 0; block = block_at(block.end, chunk)) {
        project(block, chunk);
      }
    }
    if (chunk.end == t_.depth && t_.low_rank.depth > 0) pack_low_rank();
  }

  void multiply_strips(const Span& strips, const Span& k, const Span& chunk) {
    const StripPanels panels = format_.weight_panels(column(strips.begin), strips.count(), k);
    Prefetch fetch[2];
    prefetch_after(strips, k, chunk, fetch);
    const int64_t block_steps = steps(k);
    for (int64_t strip = strips.begin; strip < strips.end; ++strip) {
      const int64_t i = strip - strips.begin;
      const PanelPair weight{panels.first + i * panels.to_next_strip, panels.to_second, block_steps};
      multiply_strip(strip, weight, k, chunk, fetch[2 * i >= strips.count()]);
    }
  }

  void multiply_strip(int64_t strip, const PanelPair& weight, const Span& k, const Span& chunk, Prefetch& prefetch) {
    const int64_t low_rank_steps = k.end == t_.depth ? low_rank_steps_ : 0, col = column(strip);
    const int64_t low_rank_bytes = low_rank_steps * kTileBytes, panel_bytes = steps(chunk) * kTileBytes;
    if (low_rank_steps > 0) {
      pack_factor(col, memory_.factor);
      pack_factor(col + t_.pair_offset, memory_.factor + low_rank_bytes);
    }
    const std::byte* rows = memory_.rows + steps({chunk.begin, k.begin}) * kTileBytes;
    for (int64_t panel = 0; panel < panels_; panel += 2) {
      const BlockProduct product{
          .rows = {rows + panel * panel_bytes, panel_bytes, weight.steps},
          .weight = weight,
          .low_rank = {memory_.low_rank + panel * low_rank_bytes, low_rank_bytes, low_rank_steps},
          .factor = {memory_.factor, low_rank_bytes, low_rank_steps},
          .first = k.begin == 0,
          .last = k.end == t_.depth,
          .sums = sums(strip, panel),
          .row_scales = format_.row_scales(k) + panel * kLanes,
          .col = col};
      if (panel + 1 < panels_) {
        format_.template multiply<2>(product, prefetch);
      } else {
        format_.template multiply<1>(product, prefetch);
      }
    }
  }

  /// Prefetches for the panels that are packed after (strips, k), one for each half of the strips.
  void prefetch_after(Span strips, Span k, const Span& chunk, Prefetch (&fetch)[2]) const {
    const int64_t products = (steps(k) * strips.count() * ((panels_ + 1) / 2) + 1) / 2;
    k = block_at(k.end, chunk);
    if (k.count() == 0) {
      const bool next_chunk = strips.end == t_.strips;
      if (next_chunk && chunk.end == t_.depth) return;
      const int64_t begin = next_chunk ? 0 : strips.end;
      strips = {begin, smaller(begin + kStripsTogether, t_.strips)};
      k = next_chunk ? block_at(chunk.end, {chunk.end, t_.depth}) : block_at(chunk.begin, chunk);
    }
    const int64_t col = column(strips.begin), lanes = strips.count() * kLanes;
    if (!pairs_are_neighbours()) {
      fetch[0] = format_.prefetch(col, lanes, k, products);
      fetch[1] = format_.prefetch(col + t_.pair_offset, lanes, k, products);
    } else if (depth_is_contiguous(t_.weight)) {
      fetch[0] = format_.prefetch(col, lanes, k, products);
      fetch[1] = format_.prefetch(col + lanes, lanes, k, products);
    } else {
      const int64_t middle = k.begin + k.count() / 2;
      fetch[0] = format_.prefetch(col, 2 * lanes, {k.begin, middle}, products);
      fetch[1] = format_.prefetch(col, 2 * lanes, {middle, k.end}, products);
    }
  }

  void finish(const Span& strips) const {
    if (t_.c) return store_rows(strips);
    for (int64_t row = 0; row < t_.count; ++row) finish_row(row, strips);
  }

  /// Rows of C are written one line at a time.
  void store_rows(const Span& strips) const {
    for (int64_t panel = 0; panel < panels_; ++panel) {
      const int64_t rows = smaller(kLanes, t_.count - panel * kLanes);
      for (int64_t strip = strips.begin; strip < strips.end; ++strip) {
        const float* from = sums(strip, panel) + panel % 2 * 2 * kTileFloats;
        uint16_t* c = t_.c + (t_.row + panel * kLanes) * t_.ldc + column(strip);
        for (int64_t i = 0; i < rows; ++i, from += kLanes, c += t_.ldc) {
          __builtin_prefetch(c + kLanes * t_.ldc, 1);
          const __m512 low = _mm512_load_ps(from), high = _mm512_load_ps(from + kTileFloats);
          _mm512_storeu_si512(c, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
      }
    }
  }

  void finish_row(int64_t row, const Span& strips) const {
    const int64_t panel = row / kLanes, count = strips.count() * (pairs_are_neighbours() ? kStripLanes : kLanes);
    const int64_t at = (panel % 2 * 2 * kLanes + row % kLanes) * kLanes;
    float* second = memory_.row + strips.count() * kLanes;
    for (int64_t strip = strips.begin; strip < strips.end; ++strip) {
      const int64_t i = strip - strips.begin;
      const float* from = sums(strip, panel) + at;
      float* to = memory_.row + i * (pairs_are_neighbours() ? kStripLanes : kLanes);
      float* to_second = pairs_are_neighbours() ? to + kLanes : second + i * kLanes;
      _mm512_store_ps(to, _mm512_load_ps(from));
      _mm512_store_ps(to_second, _mm512_load_ps(from + kTileFloats));
    }
    t_.finish(t_.context, {t_.expert, t_.row + row, column(strips.begin), count, memory_.row,
                           pairs_are_neighbours() ? nullptr : second});
  }

  /// L (= or +=) A x P for a block of k.
  void project(const Span& k, const Span& chunk) const {
    const int64_t strips = low_rank_strips(t_.low_rank.depth);
    const int64_t steps = steps_of(k.count()), panel_bytes = steps * kTileBytes;
    for (int64_t panel = 0; panel < 2 * strips; ++panel) {
      pack_projection(panel * kLanes, k, memory_.projection + panel * panel_bytes);
    }
    const PanelPair none{nullptr, 0, 0};
    Prefetch nothing;
    for (int64_t panel = 0; panel < panels_; panel += 2) {
      const PanelPair left = format_.exact_rows(panel, k, chunk);
      for (int64_t strip = 0; strip < strips; ++strip) {
        const PanelPair right{memory_.projection + 2 * strip * panel_bytes, panel_bytes, steps};
        float* to = memory_.low_rank_sums + strip * strip_sums() + panel / 2 * kBlockFloats;
        if (panel + 1 < panels_) {
          multiply_block<2>(left, right, none, none, k.begin == 0, to, nothing);
        } else {
          multiply_block<1>(left, right, none, none, k.begin == 0, to, nothing);
        }
      }
    }
  }

  /// Packs L as left panels, and stores it if requested.
  void pack_low_rank() const {
    const LowRank& l = t_.low_rank;
    if (l.projection_count == 0) {
      return pack(l.rows, TileOrder::kByLane, t_.row, t_.count, 0, l.depth, memory_.low_rank);
    }
    for (int64_t row = 0; row < t_.count; ++row) {
      const int64_t panel = row / kLanes;
      const float* from =
          memory_.low_rank_sums + panel / 2 * kBlockFloats + (panel % 2 * 2 * kLanes + row % kLanes) * kLanes;
      for (int64_t j = 0; j < l.depth; j += kLanes) {
        const __mmask16 mask = first_lanes(l.depth - j);
        const __m512 values = _mm512_load_ps(from + j / kStripLanes * strip_sums() + j / kLanes % 2 * kTileFloats);
        _mm512_mask_storeu_ps(memory_.low_rank_rows + row * l.depth + j, mask, values);
        const int64_t at = (t_.row + row) * l.depth + j;
        if (!l.stored) continue;
        if (l.stored_as_bf16) {
          _mm256_mask_storeu_epi16(static_cast<uint16_t*>(l.stored) + at, mask, (__m256i)_mm512_cvtneps_pbh(values));
        } else {
          _mm512_mask_storeu_ps(static_cast<float*>(l.stored) + at, mask, values);
        }
      }
    }
    const Operand rows{.data = memory_.low_rank_rows, .dtype = DType::kF32, .lane_stride = l.depth, .depth_stride = 1};
    pack(rows, TileOrder::kByLane, 0, t_.count, 0, l.depth, memory_.low_rank);
  }

  /// Packs columns [col, col + 16) of F.
  void pack_factor(int64_t col, std::byte* panel) const {
    const LowRank& l = t_.low_rank;
    Operand operand = staged(l.factors[0].features_first, kLanes, l.depth);
    for (int64_t f = 0; f < l.factor_count; ++f) {
      stage(l.factors[f], {col, col + kLanes}, {0, l.depth}, operand.lane_stride, operand.depth_stride);
    }
    pack(operand, TileOrder::kByPair, 0, kLanes, 0, l.depth, panel);
  }

  /// Packs columns [j, j + 16) of P, for a block of k.
  void pack_projection(int64_t j, const Span& k, std::byte* panel) const {
    const LowRank& l = t_.low_rank;
    Operand operand = staged(!l.projections[0].features_first, kLanes, k.count());
    for (int64_t f = 0; f < l.projection_count; ++f) {
      stage(l.projections[f], k, {j, j + kLanes}, operand.depth_stride, operand.lane_stride);
    }
    pack(operand, TileOrder::kByPair, 0, kLanes, 0, k.count(), panel);
  }

  /// A zeroed staging buffer of lanes x depth, with the contiguous dimension of the factors' values.
  Operand staged(bool depth_contiguous, int64_t lanes, int64_t depth) const {
    for (int64_t i = 0; i < lanes * depth; ++i) memory_.factor_values[i] = 0.0f;
    return {.data = memory_.factor_values,
            .dtype = DType::kF32,
            .lane_stride = depth_contiguous ? depth : 1,
            .depth_stride = depth_contiguous ? 1 : lanes};
  }

  /// Copies the part of a factor with these features and ranks, scaled; element (features.begin, ranks.begin) is first.
  void stage(const LowRankFactor& f, const Span& features, const Span& ranks, int64_t feature_stride,
             int64_t rank_stride) const {
    const Span n{largest(features.begin, f.begin), smaller(features.end, f.begin + f.count)};
    const Span j{largest(ranks.begin, f.rank_begin), smaller(ranks.end, f.rank_begin + f.rank)};
    if (n.count() <= 0 || j.count() <= 0) return;
    float* to =
        memory_.factor_values + (n.begin - features.begin) * feature_stride + (j.begin - ranks.begin) * rank_stride;
    const int64_t stride = f.values.row_stride, first_n = n.begin - f.begin, first_j = j.begin - f.rank_begin;
    if (f.features_first) {
      for (int64_t i = 0; i < n.count(); ++i, to += feature_stride) {
        scale_row(f.scale, f.values, (first_n + i) * stride + first_j, j.count(), to);
      }
    } else {
      for (int64_t i = 0; i < j.count(); ++i, to += rank_stride) {
        scale_row(f.scale, f.values, (first_j + i) * stride + first_n, n.count(), to);
      }
    }
  }

  static int64_t steps(const Span& k) { return (k.count() + Format::kStepDepth - 1) / Format::kStepDepth; }

  const TileTask& t_;
  const Memory memory_;
  Format format_;
  const int64_t panels_, low_rank_steps_, chunk_, finished_together_;
};

}  // namespace
}  // namespace hone::amx
