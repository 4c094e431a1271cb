// Storing of the tile kernel: the terms that are added to a product, and its rounding. Included only by
// tile_kernel_*.cpp; see tile_vector.h.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm/tile_kernel.h"
#include "kernels/cpu/gemm/tile_vector.h"

namespace hone {
namespace {

template <class Vec>
class TileStore {
  using F = typename Vec::F;
  static constexpr int kLanes = Vec::kLanes;

 public:
  /// Stores a part of C from its sums, `stride` elements between rows; a row may be read up to a whole vector.
  static void store(const GemmArgs& g, const GemmTile& part, const float* sums, int64_t stride) {
    if (g.c_dtype == DType::kBF16) {
      store_as(static_cast<uint16_t*>(g.c), g, part, sums, stride);
    } else {
      store_as(static_cast<float*>(g.c), g, part, sums, stride);
    }
  }

 private:
  /// What is added to a row of a product, from one column on.
  template <class T>
  struct Terms {
    float beta;
    const T *bias, *c, *addend;  ///< bias and addend may be null
  };

  template <class T>
  static void store_as(T* c, const GemmArgs& g, const GemmTile& part, const float* sums, int64_t stride) {
    const T* const bias = g.bias ? static_cast<const T*>(g.bias) + part.col : nullptr;
    for (int64_t r = 0; r < part.rows; ++r) {
      const F scale = Vec::broadcast(g.row_scale ? g.alpha * g.row_scale[part.row + r] : g.alpha);
      const int64_t at = (part.row + r) * g.ldc + part.col;
      T* to = c + at;
      const Terms<T> terms{g.beta, bias, to, g.addend ? static_cast<const T*>(g.addend) + at : nullptr};
      const float* from = sums + r * stride;
      int64_t col = 0;
      for (; col + kLanes <= part.cols; col += kLanes) {
        Vec::store(to + col, finish(scale, Vec::load(from + col), terms, col));
      }
      if (col == part.cols) continue;
      // The remainder uses a whole vector, so that every element is computed with the same instructions.
      const int64_t count = part.cols - col;
      T rest[kLanes] = {}, rest_bias[kLanes] = {}, rest_addend[kLanes] = {};
      if (g.beta != 0.0f) copy(rest, to + col, count);
      if (bias) copy(rest_bias, bias + col, count);
      if (terms.addend) copy(rest_addend, terms.addend + col, count);
      const Terms<T> last{g.beta, bias ? rest_bias : nullptr, rest, terms.addend ? rest_addend : nullptr};
      Vec::store(rest, finish(scale, Vec::load(from + col), last, 0));
      copy(to + col, rest, count);
    }
  }

  template <class T>
  static F finish(F scale, F sum, const Terms<T>& terms, int64_t col) {
    F value = scale * sum;
    if (terms.bias) value += Vec::load(terms.bias + col);
    if (terms.beta != 0.0f) value = Vec::multiply_add(Vec::broadcast(terms.beta), Vec::load(terms.c + col), value);
    if (terms.addend) value += Vec::load(terms.addend + col);
    return value;
  }

  template <class T>
  static void copy(T* to, const T* from, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  }
};

}  // namespace
}  // namespace hone
