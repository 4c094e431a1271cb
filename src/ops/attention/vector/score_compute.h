// The score kernel for any vector width. Included only by score_kernel_*.cpp, which are compiled for different
// instruction sets. Everything is in the anonymous namespace, and no inline function of other headers is called:
// functions with external linkage would be merged across those files, and the linker could keep a copy that the machine
// cannot run.
#pragma once

#include <cstdint>

#include "ops/attention/vector/score_kernel.h"

namespace hone::cpu {
namespace {

/// Native: the types F and I of vectors of float and int32_t.
template <class Native>
class ScoreComputer {
  using F = typename Native::F;
  using I = typename Native::I;
  static constexpr int kLanes = sizeof(F) / sizeof(float);
  static_assert(kScoreAlignment % kLanes == 0);
  static constexpr float kInfinity = __builtin_inff();

 public:
  static void softmax(const ScoreBlock& block, const OnlineSoftmax& state) {
    Rows rows(block);
    for (int64_t r = 0; r < block.rows; ++r, rows.next()) {
      float* row = block.scores + r * block.stride;
      const Seen seen = rows.seen();
      if (seen.empty()) {
        clear(row, 0, block.cols);
        continue;
      }
      const float before = state.largest[r], largest = larger(before, row_maximum(row, seen));
      const float sum = exponentials(row, block.cols, seen, largest);
      if (largest != before) {
        const float correction = scalar_exp(before - largest);
        scale_row(state.out + r * state.out_stride, state.out_stride, correction);
        state.sum[r] = state.sum[r] * correction + sum;
        state.largest[r] = largest;
      } else {
        state.sum[r] += sum;
      }
    }
  }

  static void probabilities(const ScoreBlock& block, const float* lse) {
    Rows rows(block);
    for (int64_t r = 0; r < block.rows; ++r, rows.next()) {
      exponentials(block.scores + r * block.stride, block.cols, rows.seen(), lse[r]);
    }
  }

  static void gradients(const ScoreBlock& block, float* gradients, const float* delta) {
    Rows rows(block);
    for (int64_t r = 0; r < block.rows; ++r, rows.next()) {
      const float* p = block.scores + r * block.stride;
      float* g = gradients + r * block.stride;
      const Seen seen = rows.seen();
      clear(g, 0, first_vector(seen));
      const auto gradient = [&](int64_t c) { return load(p + c) * (load(g + c) - delta[r]); };
      for_each_vector(
          seen, [&](int64_t c, I mask) { store(g + c, mask & (I)gradient(c)); },
          [&](int64_t c) { store(g + c, gradient(c)); });
      clear(g, end_vector(seen), block.cols);
    }
  }

 private:
  /// The columns that a row attends to.
  struct Seen {
    int64_t begin, end;

    bool empty() const { return begin == end; }
    /// All ones in the lanes of columns [c, c + kLanes) that are not masked.
    I holds(int64_t c) const {
      const I lane = lane_numbers() + (int32_t)c;
      return (lane >= (int32_t)begin) & (lane < (int32_t)end);
    }
  };

  /// Iterates over the rows of a block and their unmasked columns.
  class Rows {
   public:
    explicit Rows(const ScoreBlock& block) : block_(block), query_(block.first_query) {}
    void next() {
      if (++head_ < block_.group) return;
      head_ = 0;
      ++query_;
    }
    Seen seen() const {
      const int64_t last = query_ - block_.first_key;  // the key at the query's own position
      const int64_t begin = block_.window > 0 && last >= block_.window ? last - block_.window + 1 : 0;
      const int64_t end = last < block_.cols ? last + 1 : block_.cols;
      return begin < end ? Seen{begin, end} : Seen{0, 0};
    }

   private:
    const ScoreBlock& block_;
    int64_t query_, head_ = 0;
  };

  static F load(const float* p) {
    F value;
    __builtin_memcpy(&value, p, sizeof(F));
    return value;
  }
  static void store(float* p, F value) { __builtin_memcpy(p, &value, sizeof(F)); }
  static void store(float* p, I bits) { __builtin_memcpy(p, &bits, sizeof(I)); }
  static F broadcast(float x) { return x - F{}; }
  static I lane_numbers() {
    I lanes;
    for (int i = 0; i < kLanes; ++i) lanes[i] = i;
    return lanes;
  }
  /// NaN in `b` is ignored; its exp still gives NaN.
  static float larger(float a, float b) { return b > a ? b : a; }

  static void clear(float* row, int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; c += kLanes) store(row + c, F{});
  }

  static void scale_row(float* row, int64_t size, float factor) {
    for (int64_t i = 0; i < size; i += kLanes) store(row + i, load(row + i) * factor);
  }

  /// Calls visit(c, mask of lanes) for the vectors of unmasked columns; inner vectors have no masked lanes.
  template <class Edge, class Inner>
  static void for_each_vector(const Seen& seen, const Edge& edge, const Inner& inner) {
    int64_t c = first_vector(seen);
    if (c < seen.begin) {
      edge(c, seen.holds(c));
      c += kLanes;
    }
    for (; c + kLanes <= seen.end; c += kLanes) inner(c);
    if (c < seen.end) edge(c, seen.holds(c));
  }

  static float row_maximum(const float* row, const Seen& seen) {
    F largest = broadcast(-kInfinity);
    const auto include = [&](F score) { largest = score > largest ? score : largest; };
    for_each_vector(
        seen, [&](int64_t c, I mask) { include(mask ? load(row + c) : broadcast(-kInfinity)); },
        [&](int64_t c) { include(load(row + c)); });
    for (int width = kLanes / 2; width > 0; width /= 2) include(rotated(largest, width));
    return largest[0];
  }

  /// row = exp(row − offset) where not masked, else 0; returns the sum.
  static float exponentials(float* row, int64_t cols, const Seen& seen, float offset) {
    clear(row, 0, first_vector(seen));
    F sum{};
    const auto include = [&](int64_t c, F value) {
      store(row + c, value);
      sum += value;
    };
    for_each_vector(
        seen, [&](int64_t c, I mask) { include(c, (F)(mask & (I)exp(load(row + c) - offset))); },
        [&](int64_t c) { include(c, exp(load(row + c) - offset)); });
    clear(row, end_vector(seen), cols);
    for (int width = kLanes / 2; width > 0; width /= 2) sum += rotated(sum, width);
    return sum[0];
  }

  /// The vectors with unmasked columns are [first_vector, end_vector).
  static int64_t first_vector(const Seen& seen) { return seen.begin / kLanes * kLanes; }
  static int64_t end_vector(const Seen& seen) { return (seen.end + kLanes - 1) / kLanes * kLanes; }

  /// Lane i gets the value of lane i + count (modulo the number of lanes).
  static F rotated(F value, int count) {
#ifdef __clang__  // which shuffles by constants only
    F result;
    for (int i = 0; i < kLanes; ++i) result[i] = value[(i + count) & (kLanes - 1)];
    return result;
#else
    return __builtin_shuffle(value, (lane_numbers() + count) & (kLanes - 1));
#endif
  }

  static float scalar_exp(float x) { return exp(broadcast(x))[0]; }

  /// exp(x) = 2^n exp(r) with n = round(x / log 2), |r| <= log(2) / 2. The Taylor polynomial of degree 7 has an error
  /// r^8 / 8! < 6e-9. Valid for x up to 88; a score minus its maximum is never positive.
  static F exp(F x) {
    constexpr float kLog2E = 1.44269504088896f;
    constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;  // kLn2High · n is exact
    constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it leaves the nearest integer in the low bits
    constexpr float kSmallest = -86.0f;
    const I too_small = x < broadcast(kSmallest);
    x = too_small ? broadcast(kSmallest) : x;
    const F shifted = x * kLog2E + kRound;
    const F n = shifted - kRound;
    F r = x - n * kLn2High;
    r = r - n * kLn2Low;
    F sum = r * (1.0f / 5040) + (1.0f / 720);
    sum = sum * r + (1.0f / 120);
    sum = sum * r + (1.0f / 24);
    sum = sum * r + (1.0f / 6);
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    const I power = ((I)shifted + 127) << 23;  // n is in the low bits of `shifted`; what is above falls off
    return (F)(~too_small & (I)(sum * (F)power));
  }
};

}  // namespace
}  // namespace hone::cpu
