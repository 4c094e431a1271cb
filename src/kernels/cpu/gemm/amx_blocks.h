// Divides a product on AMX into blocks whose operands are packed together, and decides which operand is the left one,
// which is packed, and which is read in place.
#pragma once

#include <algorithm>

#include "core/cpu/page_memory.h"
#include "kernels/cpu/gemm/amx_tiles.h"
#include "kernels/cpu/gemm/task_cut.h"

namespace hone::amx {

// Costs in cycles. A product of tiles takes one cycle per row; reading a tile in place and packing it were measured to
// take about the cycles below, mostly waiting for memory.
inline constexpr int64_t kProductCost = 16;
inline constexpr int64_t kReadCost = 64;
inline constexpr int64_t kCopyCost = 80;        ///< packing in memory's order
inline constexpr int64_t kTransposeCost = 120;  ///< packing with a transpose
inline constexpr int64_t kElementsCost = 2048;  ///< packing element by element
/// Transposing a tile of accumulators of swapped operands; storing any tile.
inline constexpr int64_t kSwapCost = 64;
inline constexpr int64_t kStoreCost = 48;

/// A right operand that is multiplied with few left panels (the rank of an adapter) is packed by the task that
/// multiplies it, in parts that fit in its L2 cache.
inline constexpr int64_t kFewPanels = 2;
inline constexpr int64_t kBesidePanels = 8, kBesideSteps = 32;
inline constexpr int64_t kBesideBytes = kBesidePanels * kBesideSteps * kTileBytes;

/// Limits of a block: bytes of its operands, and its depth if k does not fit in one block. A block is most of a product
/// rather than what fits in a core's own caches, since repacking an operand costs more than reading it from a shared
/// cache.
inline constexpr int64_t kPackedBytes = int64_t{16} << 20;
inline constexpr int64_t kSplitSteps = 64;
inline constexpr int64_t kSplitPanels = kPackedBytes / (kSplitSteps * kTileBytes);
inline constexpr int64_t kSumsBytes = kSplitPanels * kSplitPanels / 4 * kTileBytes;

/// As even_part(), but `most` may be less than `unit`; at most `extent`.
inline int64_t even_panels(int64_t extent, int64_t most, int64_t unit) {
  if (extent <= most) return extent;
  return std::min(even_part(extent, std::max(most / unit * unit, unit), unit), extent);
}

/// A thread's memory for `slots` blocks and the accumulators of one.
class Workspace {
 public:
  explicit Workspace(int64_t slots)
      : slots_(slots), memory_(allocate_pages(static_cast<size_t>(slots * kPackedBytes + kSumsBytes))) {}
  std::byte* slot(int64_t i) const { return memory_.get() + i % slots_ * kPackedBytes; }
  float* sums() const { return reinterpret_cast<float*>(memory_.get() + slots_ * kPackedBytes); }

 private:
  int64_t slots_;
  PageMemory memory_;
};

/// The calling thread's workspace, for one block.
const Workspace& serial_workspace();

/// A product with its left and right operand: A and B, or swapped if that makes packing cheaper. Results are bitwise
/// equal either way, since multiplication commutes.
struct Sides {
  const GemmArgs* args = nullptr;
  bool swapped = false;
  Operand left, right;
  int64_t left_lanes = 0, right_lanes = 0;
  int64_t left_cost = 0, right_cost = 0;  ///< cost of packing a tile

  /// Whether tiles of the left operand can be read in place: bfloat16, in complete tiles.
  bool left_in_place() const;
  bool right_beside() const {
    return !left_in_place() && panels_of(left_lanes) <= kFewPanels && panels_of(right_lanes) > kFewPanels;
  }
  int64_t panels() const { return panels_of(left_lanes) + panels_of(right_lanes); }
  int64_t tiles() const { return panels_of(left_lanes) * panels_of(right_lanes); }
  int64_t packing() const {
    return (panels_of(left_lanes) * left_cost + panels_of(right_lanes) * right_cost) * steps_of(args->k);
  }
  int64_t cost() const {
    return packing() + tiles() * (steps_of(args->k) * kProductCost + kStoreCost + (swapped ? kSwapCost : 0));
  }
};

/// Chooses the cheaper order of operands.
Sides sides_of(const GemmArgs& g);

/// A part of a product whose operands are packed together.
struct Block {
  Sides sides;
  int64_t left = 0, lefts = 0, right = 0, rights = 0;  // lanes
  int64_t k = 0, depth = 0;
  bool in_place = false;  ///< the left operand is not packed
  bool beside = false;    ///< the right operand is packed by the tasks that multiply it

  int64_t steps() const { return steps_of(depth); }
  int64_t left_bytes() const { return in_place ? 0 : panels_of(lefts) * steps() * kTileBytes; }
  int64_t right_bytes() const { return beside ? 0 : panels_of(rights) * steps() * kTileBytes; }
  int64_t bytes() const { return left_bytes() + right_bytes(); }
  bool first() const { return k == 0; }
  bool last() const { return k + depth >= sides.args->k; }

  void pack_left(PanelRange p, std::byte* packed) const {
    pack(sides.left, TileOrder::kByLane, left + p.begin * kLanes, lanes(p, lefts), k, depth,
         packed + p.begin * steps() * kTileBytes);
  }
  void pack_right(PanelRange p, std::byte* packed) const {
    pack(sides.right, TileOrder::kByPair, right + p.begin * kLanes, lanes(p, rights), k, depth,
         packed + p.begin * steps() * kTileBytes);
  }
  /// Panels `range` of the right operand, from step `step` on.
  Block part(PanelRange range, int64_t step, int64_t most_steps) const {
    Block b = *this;
    b.right = right + range.begin * kLanes;
    b.rights = lanes(range, rights);
    b.k = k + step * kDepth;
    b.depth = std::min(most_steps * kDepth, depth - step * kDepth);
    b.beside = false;
    return b;
  }
  /// Panels at `packed`, or in place.
  Panels left_panels(const std::byte* packed) const;
  PanelProduct product(const Panels& left_panels, const std::byte* packed_right, float* sums) const;

 private:
  static int64_t lanes(PanelRange p, int64_t of) { return std::min(p.end * kLanes, of) - p.begin * kLanes; }
};

/// Multiplies packed left panels by right panels of a block, which the calling thread packs at the end of its own
/// workspace; the left panels may be at its beginning.
void multiply_beside(const Block& block, const std::byte* left, PanelRange right);

/// Calls body(block) for the blocks of a product; blocks of the same part of C are consecutive, in increasing k.
template <class Body>
void for_each_block(const Sides& sides, const Body& body) {
  const int64_t all_steps = steps_of(sides.args->k);
  const bool in_place = sides.left_in_place(), beside = sides.right_beside();
  if (sides.left_lanes == 0 || sides.right_lanes == 0) return;
  // The other side has at most a few panels, and accumulators are not kept.
  if (in_place && panels_of(sides.right_lanes) * all_steps * kTileBytes <= kPackedBytes) {
    body(Block{sides, 0, sides.left_lanes, 0, sides.right_lanes, 0, sides.args->k, true, false});
    return;
  }
  if (beside && panels_of(sides.left_lanes) * all_steps * kTileBytes <= kPackedBytes - kBesideBytes) {
    body(Block{sides, 0, sides.left_lanes, 0, sides.right_lanes, 0, sides.args->k, false, true});
    return;
  }
  int64_t steps = all_steps, panels = kPackedBytes / (std::max<int64_t>(steps, 1) * kTileBytes);
  if (steps > kSplitSteps && sides.panels() > panels) {
    steps = even_panels(all_steps, kSplitSteps, 1);
    panels = kSplitPanels;
  }
  // All of one side if it takes less than half the memory, else half for each.
  const int64_t lefts = panels_of(sides.left_lanes), rights = panels_of(sides.right_lanes);
  const int64_t half = panels / 2;
  const int64_t most_left = lefts <= half ? lefts : std::max(half, panels - rights);
  const int64_t most_right = rights <= half ? rights : std::max(half, panels - lefts);
  const int64_t left = even_panels(lefts, most_left, 2) * kLanes, right = even_panels(rights, most_right, 2) * kLanes;
  for (int64_t r = 0; r < sides.right_lanes; r += right) {
    for (int64_t l = 0; l < sides.left_lanes; l += left) {
      for (int64_t k = 0; k == 0 || k < sides.args->k; k += std::max<int64_t>(steps, 1) * kDepth) {
        body(Block{sides, l, std::min(left, sides.left_lanes - l), r, std::min(right, sides.right_lanes - r), k,
                   std::min(steps * kDepth, sides.args->k - k), in_place, false});
      }
    }
  }
}

}  // namespace hone::amx
