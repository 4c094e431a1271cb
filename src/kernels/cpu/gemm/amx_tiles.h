// The AMX part of gemm: packs bfloat16 tiles, and multiplies them.
//
// A tile is 16 rows of 64 bytes. TDPBF16PS multiplies a tile of 16 lanes x 32 k (the left operand) with one of 16 pairs
// of k x 16 lanes (the right operand) and adds the product to a tile of 16 x 16 float32, one row a cycle.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18, and volume 2, TDPBF16PS.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/gemm/gemm.h"

namespace hone::amx {

inline constexpr int64_t kLanes = 16;
inline constexpr int64_t kDepth = 32;
inline constexpr int64_t kTileBytes = 1024;
inline constexpr int64_t kTileFloats = kLanes * kLanes;
/// Panels of an inner loop stay in a 2 MiB L2 cache while those of the outer loop are streamed.
inline constexpr int64_t kInnerBytes = int64_t{1} << 20;

// Functions here have no external linkage: see tile_vector.h.
static constexpr int64_t panels_of(int64_t lanes) { return (lanes + kLanes - 1) / kLanes; }
static constexpr int64_t steps_of(int64_t depth) { return (depth + kDepth - 1) / kDepth; }

/// An operand of a product, viewed as lanes (the rows of A or the columns of B) by depth (k).
struct Operand {
  const void* data = nullptr;
  DType dtype = DType::kBF16;  ///< float32 is rounded to bfloat16 while it is packed
  int64_t lane_stride = 0, depth_stride = 0;
  const int32_t* lane_index = nullptr;
  const int32_t* depth_index = nullptr;
};

[[maybe_unused]] static bool depth_is_contiguous(const Operand& o) { return o.depth_stride == 1 && !o.depth_index; }
[[maybe_unused]] static bool lanes_are_contiguous(const Operand& o) { return o.lane_stride == 1 && !o.lane_index; }

/// Order of 16 lanes x 32 k in a tile.
enum class TileOrder {
  kByLane,  ///< row i: the 32 k of lane i, as the left operand
  kByPair,  ///< row j: k = 2j and 2j + 1 of lane 0, of lane 1, …, as the right operand
};

/// Packs lanes [lane, lane + lanes) and k [k, k + depth) as panels of 16 lanes, each with its tiles in increasing k;
/// the last tile is padded with zeros in k. Lanes past the end of the range are finite values or copies of their
/// neighbours.
void pack(const Operand& operand, TileOrder order, int64_t lane, int64_t lanes, int64_t k, int64_t depth,
          std::byte* panels);

/// One operand of a product of panels: tile s of panel p is at data + p * panel_bytes + s * step_bytes, and its rows
/// are row_bytes apart.
struct Panels {
  const std::byte* data = nullptr;
  int64_t panel_bytes = 0, step_bytes = kTileBytes, row_bytes = 64;
};

/// A product of panels and its destination. `swapped`: left panels are columns of C and right panels are rows.
struct PanelProduct {
  const GemmArgs* args = nullptr;
  bool swapped = false;
  Panels left, right;
  int64_t steps = 0;
  int64_t left_lane = 0, left_lanes = 0;  ///< rows (or columns) of C of the left panels
  int64_t right_lane = 0, right_lanes = 0;
  /// Accumulators carried between parts of a split k: tiles [left panels][right panels].
  float* sums = nullptr;
  bool first = true, last = true;
};

/// Panels [begin, end) of an operand.
struct PanelRange {
  int64_t begin = 0, end = 0;
};

/// Multiplies left panels by right panels on the calling thread, whose tile registers it configures.
void multiply(const PanelProduct& product, PanelRange left, PanelRange right);

}  // namespace hone::amx
