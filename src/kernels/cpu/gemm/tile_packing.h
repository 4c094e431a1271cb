// Packing for the tile kernel: copies a part of A or B into a float32 panel [depth][Width], and converts, transposes
// and gathers meanwhile. Included only by tile_kernel_*.cpp; see tile_vector.h.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/gemm/tile_vector.h"

namespace hone {
namespace {

/// An operand, viewed as lanes (the rows of A or the columns of B) by depth (k).
struct PanelSource {
  const void* data;
  bool is_bf16;
  int64_t lane_stride, depth_stride;
  const int32_t* lane_index;
  const int32_t* depth_index;
  int64_t lanes;  ///< lanes of the whole operand

  static PanelSource of_a(const GemmArgs& g) {
    return {g.a.data, g.a.dtype == DType::kBF16, g.a.row_stride, g.a.col_stride, g.a.row_index, g.a.col_index, g.m};
  }
  static PanelSource of_b(const GemmArgs& g) {
    return {g.b.data, g.b.dtype == DType::kBF16, g.b.col_stride, g.b.row_stride, g.b.col_index, g.b.row_index, g.n};
  }
  bool lanes_are_neighbours() const { return lane_stride == 1 && !lane_index; }
};

/// A part of an operand: lanes [lane, lane + lanes), k in [k, k + depth).
struct PanelRange {
  int64_t lane, lanes, k, depth;
};

inline float to_float(float v) { return v; }
inline float to_float(uint16_t bits) { return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16); }

/// Packs panels of Width lanes, a multiple of the vector size. Lanes past the end of the range are undefined.
template <class Vec, int Width>
class Packer {
  static constexpr int kLanes = Vec::kLanes;
  static_assert(Width % kLanes == 0);
  using U = typename Vec::U;
  using F = typename Vec::F;

 public:
  /// Packs a range as consecutive panels of `height` lanes.
  static void pack(const PanelSource& source, const PanelRange& range, int64_t height, float* panels) {
    // Contiguous lanes are read in memory order, some k for all panels at a time.
    const int64_t step = source.lanes_are_neighbours() ? kRowsTogether : range.depth;
    for (int64_t i = 0; i < range.depth; i += step) {
      const int64_t depth = smaller(step, range.depth - i);
      float* panel = panels + i * Width;
      for (int64_t lane = 0; lane < range.lanes; lane += height, panel += Width * range.depth) {
        const PanelRange part{range.lane + lane, smaller(height, range.lanes - lane), range.k + i, depth};
        if (source.is_bf16) {
          pack_panel(static_cast<const uint16_t*>(source.data), source, part, panel);
        } else {
          pack_panel(static_cast<const float*>(source.data), source, part, panel);
        }
      }
    }
  }

 private:
  static constexpr int64_t kRowsTogether = 16;

  static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

  template <class T>
  static void pack_panel(const T* data, const PanelSource& s, const PanelRange& r, float* panel) {
    if (s.lanes_are_neighbours()) {
      copy(data, s, r, panel);
    } else if (s.depth_stride == 1 && !s.depth_index) {
      for (int64_t lane = 0; lane < r.lanes; lane += kLanes) transpose(data, s, r, lane, panel + lane);
    } else {
      gather(data, s, r, panel);
    }
  }

  /// Packs contiguous lanes.
  template <class T>
  static void copy(const T* data, const PanelSource& s, const PanelRange& r, float* panel) {
    for (int64_t lane = 0; lane < r.lanes; lane += kLanes) {
      const int64_t readable = s.lanes - r.lane - lane;
      const T* from = data + r.lane + lane;
      if (readable < kLanes) {
        for_each_k(s, r, [&](int64_t i, int64_t k) {
          Vec::store(panel + i * Width + lane, load_few(from + k * s.depth_stride, readable));
        });
      } else if (readable >= Width && lane == 0) {
        for_each_k(s, r, [&](int64_t i, int64_t k) {
#pragma GCC unroll 4
          for (int v = 0; v < Width; v += kLanes) {
            Vec::store(panel + i * Width + v, Vec::load(from + k * s.depth_stride + v));
          }
        });
        return;
      } else {
        for_each_k(s, r, [&](int64_t i, int64_t k) {
          Vec::store(panel + i * Width + lane, Vec::load(from + k * s.depth_stride));
        });
      }
    }
  }

  template <class F>
  static void for_each_k(const PanelSource& s, const PanelRange& r, F f) {
    if (s.depth_index) {
      for (int64_t i = 0; i < r.depth; ++i) f(i, s.depth_index[r.k + i]);
    } else {
#pragma GCC unroll 4
      for (int64_t i = 0; i < r.depth; ++i) f(i, r.k + i);
    }
  }

  /// Packs contiguous k: vectors along k for kLanes lanes, transposed in registers.
  template <class T>
  static void transpose(const T* data, const PanelSource& s, const PanelRange& r, int64_t first, float* panel) {
    constexpr int64_t kStep = kLanes * 4 / sizeof(T);
    const void* lanes[kLanes];
    for (int j = 0; j < kLanes; ++j) {
      const int64_t nearest = first + j < r.lanes ? first + j : r.lanes - 1;
      const int64_t lane = s.lane_index ? s.lane_index[r.lane + nearest] : r.lane + nearest;
      lanes[j] = data + lane * s.lane_stride + r.k;
    }
    constexpr int64_t kBytes = sizeof(U);
    U columns[kLanes];
    int64_t i = 0;
    for (; i + kStep <= r.depth; i += kStep) {
      Vec::load_transposed(lanes, i * static_cast<int64_t>(sizeof(T)), columns);
      store_columns(columns, data, kStep, panel + i * Width);
    }
    if (i == r.depth) return;
    alignas(64) char rest[kLanes][kBytes] = {};
    for (int j = 0; j < kLanes; ++j) {
      const T* const from = static_cast<const T*>(lanes[j]) + i;
      __builtin_memcpy(rest[j], from, static_cast<size_t>(r.depth - i) * sizeof(T));
      lanes[j] = rest[j];
    }
    Vec::load_transposed(lanes, 0, columns);
    store_columns(columns, data, r.depth - i, panel + i * Width);
  }

  static void store_columns(const U (&columns)[kLanes], const float*, int64_t depth, float* panel) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i < depth) Vec::store(panel + i * Width, (F)columns[i]);
    }
  }

  /// A 32-bit lane holds two consecutive k; the lower half is the first.
  static void store_columns(const U (&columns)[kLanes], const uint16_t*, int64_t depth, float* panel) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (2 * i < depth) Vec::store(panel + 2 * i * Width, (F)(columns[i] << 16));
      if (2 * i + 1 < depth) Vec::store(panel + (2 * i + 1) * Width, (F)(columns[i] & 0xffff0000u));
    }
  }

  template <class T>
  static void gather(const T* data, const PanelSource& s, const PanelRange& r, float* panel) {
    for (int64_t j = 0; j < r.lanes; ++j) {
      const T* lane = data + (s.lane_index ? s.lane_index[r.lane + j] : r.lane + j) * s.lane_stride;
      for (int64_t i = 0; i < r.depth; ++i) {
        const int64_t k = s.depth_index ? s.depth_index[r.k + i] : r.k + i;
        panel[i * Width + j] = to_float(lane[k * s.depth_stride]);
      }
    }
  }

  template <class T>
  static F load_few(const T* from, int64_t count) {
    T few[kLanes] = {};
    for (int64_t j = 0; j < count; ++j) few[j] = from[j];
    return Vec::load(few);
  }
};

}  // namespace
}  // namespace hone
