// A product on AMX as blocks whose operands are packed at one time: which operand is the left one, which is packed, and
// which is read in place.
#pragma once

#include <algorithm>

#include "core/page_memory.h"
#include "kernels/cpu/gemm/amx_tiles.h"
#include "kernels/cpu/gemm/task_cut.h"

namespace hone::amx {

// Costs are in cycles. A product of tiles takes one a row; reading a tile in place, or packing it, was measured to take
// about the cycles below, most of them waits for memory.
inline constexpr int64_t kProductCost = 16;
inline constexpr int64_t kReadCost = 64;
inline constexpr int64_t kCopyCost = 80;        ///< packing in memory's order
inline constexpr int64_t kTransposeCost = 120;  ///< packing with a transpose
inline constexpr int64_t kElementsCost = 2048;  ///< element by element
/// Transposing a tile of accumulators of swapped operands, and storing any tile.
inline constexpr int64_t kSwapCost = 64;
inline constexpr int64_t kStoreCost = 48;

/// A right operand that so few left panels are multiplied with (the ranks of an adapter) is packed by the task that
/// multiplies it, in parts that stay in its level-2 cache.
inline constexpr int64_t kFewPanels = 2;
inline constexpr int64_t kBesidePanels = 8, kBesideSteps = 32;
inline constexpr int64_t kBesideBytes = kBesidePanels * kBesideSteps * kTileBytes;

/// Bytes of the operands of a block, and how deep it may be if k does not fit in one. A block is most of a product
/// rather than what a core's own caches hold, since packing an operand again costs more than reading it from a shared
/// cache.
inline constexpr int64_t kPackedBytes = int64_t{16} << 20;
inline constexpr int64_t kSplitSteps = 64;
inline constexpr int64_t kSplitPanels = kPackedBytes / (kSplitSteps * kTileBytes);
inline constexpr int64_t kSumsBytes = kSplitPanels * kSplitPanels / 4 * kTileBytes;

/// even_part(), where `most` may be less than `unit`; no more than there is.
inline int64_t even_panels(int64_t extent, int64_t most, int64_t unit) {
  if (extent <= most) return extent;
  return std::min(even_part(extent, std::max(most / unit * unit, unit), unit), extent);
}

/// A thread's memory for `slots` blocks and the sums of one.
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

/// A product as left and right operand: A and B, or the other way round where packing them is cheaper so. Bits do not
/// depend on it, since a product of two numbers does not.
struct Sides {
  const GemmArgs* args = nullptr;
  bool swapped = false;
  Operand left, right;
  int64_t left_lanes = 0, right_lanes = 0;
  int64_t left_cost = 0, right_cost = 0;  ///< of packing a tile

  /// Whether tiles of the left operand can be read in place: bfloat16, and whole.
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

/// The way round that costs less.
Sides sides_of(const GemmArgs& g);

/// A part of a product whose operands are packed at one time.
struct Block {
  Sides sides;
  int64_t left = 0, lefts = 0, right = 0, rights = 0;  // lanes
  int64_t k = 0, depth = 0;
  bool in_place = false;  ///< the left operand is not packed
  bool beside = false;    ///< the right operand is packed beside its products

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
  /// Panels `range` and steps [step, …) of the right operand.
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

/// Multiplies packed left panels by some right ones of a block, which the calling thread packs: at the end of its own
/// workspace, so that the left ones may lie in front.
void multiply_beside(const Block& block, const std::byte* left, PanelRange right);

/// Calls body(block) for the blocks of a product; those of one part of C follow one another in rising k.
template <class Body>
void for_each_block(const Sides& sides, const Body& body) {
  const int64_t all_steps = steps_of(sides.args->k);
  const bool in_place = sides.left_in_place(), beside = sides.right_beside();
  if (sides.left_lanes == 0 || sides.right_lanes == 0) return;
  // The other side has at most a few panels, and no accumulators are kept.
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
  // One side whole if it takes less than half the memory, else half each.
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
