// The decisions of amx_blocks.h: which operand of a product is the left one, and whether it is packed, by the measured
// costs given there.
#include "kernels/cpu/gemm/amx_blocks.h"

#include <utility>

namespace hone::amx {

namespace {

/// A left operand that is multiplied with at most this many right panels is read in place.
constexpr int64_t kMostDirectUses = 8;

Operand rows_of_a(const GemmArgs& g) {
  return {g.a.data, g.a.dtype, g.a.row_stride, g.a.col_stride, g.a.row_index, g.a.col_index};
}
Operand columns_of_b(const GemmArgs& g) {
  return {g.b.data, g.b.dtype, g.b.col_stride, g.b.row_stride, g.b.col_index, g.b.row_index};
}

int64_t packing_cost(const Operand& o, TileOrder order) {
  if (depth_is_contiguous(o)) return order == TileOrder::kByLane ? kCopyCost : kTransposeCost;
  if (lanes_are_contiguous(o)) return order == TileOrder::kByPair ? kCopyCost : kTransposeCost;
  return kElementsCost;
}

Sides sides_of(const GemmArgs& g, bool swapped) {
  Sides s{&g, swapped, rows_of_a(g), columns_of_b(g), g.m, g.n};
  if (swapped) std::swap(s.left, s.right), std::swap(s.left_lanes, s.right_lanes);
  s.left_cost = s.left_in_place() ? kReadCost : packing_cost(s.left, TileOrder::kByLane);
  s.right_cost = packing_cost(s.right, TileOrder::kByPair);
  return s;
}

}  // namespace

const Workspace& serial_workspace() {
  thread_local const Workspace workspace(1);
  return workspace;
}

bool Sides::left_in_place() const {
  return left.dtype == DType::kBF16 && depth_is_contiguous(left) && !left.lane_index && left_lanes % kLanes == 0 &&
         args->k % kDepth == 0 && panels_of(right_lanes) <= kMostDirectUses;
}

Sides sides_of(const GemmArgs& g) {
  const Sides straight = sides_of(g, false), swapped = sides_of(g, true);
  return swapped.cost() < straight.cost() ? swapped : straight;
}

Panels Block::left_panels(const std::byte* packed) const {
  if (!in_place) return {.data = packed, .panel_bytes = steps() * kTileBytes};
  constexpr int64_t kSize = 2;
  const Operand& o = sides.left;
  return {.data = static_cast<const std::byte*>(o.data) + (left * o.lane_stride + k) * kSize,
          .panel_bytes = kLanes * o.lane_stride * kSize,
          .step_bytes = kDepth * kSize,
          .row_bytes = o.lane_stride * kSize};
}

PanelProduct Block::product(const Panels& left_panels, const std::byte* packed_right, float* sums) const {
  return {.args = sides.args,
          .swapped = sides.swapped,
          .left = left_panels,
          .right = {.data = packed_right, .panel_bytes = steps() * kTileBytes},
          .steps = steps(),
          .left_lane = left,
          .left_lanes = lefts,
          .right_lane = right,
          .right_lanes = rights,
          .sums = sums,
          .first = first(),
          .last = last()};
}

void multiply_beside(const Block& block, const std::byte* left, PanelRange right) {
  const Workspace& workspace = serial_workspace();
  std::byte* const packed = workspace.slot(0) + kPackedBytes - kBesideBytes;
  for (PanelRange r{right.begin, 0}; r.begin < right.end; r.begin = r.end) {
    r.end = std::min(r.begin + kBesidePanels, right.end);
    const PanelRange panels{0, r.end - r.begin};
    for (int64_t step = 0; step == 0 || step < block.steps(); step += kBesideSteps) {
      const Block part = block.part(r, step, kBesideSteps);
      part.pack_right(panels, packed);
      Panels rows = block.left_panels(left);
      rows.data += step * rows.step_bytes;
      multiply(part.product(rows, packed, workspace.sums()), {0, panels_of(block.lefts)}, panels);
    }
  }
}

}  // namespace hone::amx
