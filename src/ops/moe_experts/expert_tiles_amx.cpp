#include "ops/moe_experts/expert_tiles.h"

#include "ops/moe_experts/expert_task_amx.h"

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

/// k of a tile.
int64_t step_depth(const TileTask& shape) { return block_depth(shape) / kBlockSteps; }

}  // namespace

int64_t most_rows(const TileTask& shape) {
  constexpr int64_t kLeastPanels = 4;  // with fewer, reading W costs more
  const int64_t steps = (shape.depth + step_depth(shape) - 1) / step_depth(shape);
  const int64_t panels = kMaxRowTiles / largest(steps, 1) / 2 * 2;
  return is_int8(shape) ? smaller(kMaxTaskRows, largest(panels, kLeastPanels) * kLanes) : kMaxTaskRows;
}

int64_t chunk_depth(const TileTask& shape, int64_t rows) {
  const int64_t block = block_depth(shape), most = kMaxRowTiles / panels_of(rows) * step_depth(shape);
  return most >= shape.depth ? shape.depth : most / block * block;
}

int64_t workspace_bytes(const TileTask& shape) { return Memory(shape, nullptr).end - static_cast<std::byte*>(nullptr); }

void run_tiles(const TileTask& task, std::byte* workspace) {
  configure_tiles();
  is_int8(task) ? run_int8_tiles(task, workspace) : Task<Bf16Format>(task, workspace).run();
}

}  // namespace hone::amx
