#include "ops/gemm/amx_products.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/page_memory.h"
#include "core/thread_pool.h"
#include "ops/gemm/amx_tiles.h"
#include "ops/gemm/task_cut.h"

namespace hone::amx {

namespace {

// Costs are in cycles. A product of tiles takes one a row; reading a tile where it lies, or packing it, was measured to
// take about as many as follow, most of them waits for memory.
constexpr int64_t kProductCost = 16;
constexpr int64_t kReadCost = 64;
constexpr int64_t kCopyCost = 80;        ///< packing where its order is memory's
constexpr int64_t kTransposeCost = 120;  ///< where it is not
constexpr int64_t kElementsCost = 2048;  ///< element by element
/// Turning a tile of sums that is swapped, and storing any.
constexpr int64_t kSwapCost = 64;
constexpr int64_t kStoreCost = 48;

/// Below this, waking the other threads costs more than they save.
constexpr int64_t kSerialCost = 20000;
/// Some 8 microseconds: long against a task's overhead, short against an imbalance.
constexpr int64_t kLeastTaskCost = 20000;
constexpr int64_t kTasksPerThread = 6;
/// Of one block, where k is split.
constexpr int64_t kSplitTasksPerThread = 2;
/// The panels of a task's inner loop stay in a 2 MiB level-2 cache while those of the outer one pass by.
constexpr int64_t kInnerBytes = int64_t{1} << 20;
/// A left operand that so few right panels are multiplied with is read where it lies.
constexpr int64_t kMostDirectUses = 8;

/// Bytes of the operands of a block, and how deep it may be if k does not fit in one. A block is most of a product
/// rather than what a core's own caches hold, since packing an operand again costs more than reading it from a shared
/// cache.
constexpr int64_t kPackedBytes = int64_t{16} << 20;
constexpr int64_t kSplitSteps = 64;
constexpr int64_t kSplitPanels = kPackedBytes / (kSplitSteps * kTileBytes);
constexpr int64_t kSumsBytes = kSplitPanels * kSplitPanels / 4 * kTileBytes;
/// Blocks in memory at one time: one is multiplied, the next packed, and one between them, so that no thread waits.
constexpr int64_t kSlots = 3;

/// even_part(), where `most` may be less than `unit`; no more than there is.
int64_t even_panels(int64_t extent, int64_t most, int64_t unit) {
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

const Workspace& serial_workspace() {
  thread_local const Workspace workspace(1);
  return workspace;
}
/// Of the thread that starts a product; the pool's work in it.
const Workspace& pooled_workspace() {
  thread_local const Workspace workspace(kSlots);
  return workspace;
}

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

/// A product as left and right operand: A and B, or the other way round where packing them is cheaper so. Bits do not
/// depend on it, since a product of two numbers does not.
struct Sides {
  const GemmArgs* args = nullptr;
  bool swapped = false;
  Operand left, right;
  int64_t left_lanes = 0, right_lanes = 0;
  int64_t left_cost = 0, right_cost = 0;  ///< of packing a tile

  /// Whether tiles of the left operand can be read in place: bfloat16, and whole.
  bool left_in_place() const {
    return left.dtype == DType::kBF16 && depth_is_contiguous(left) && !left.lane_index && left_lanes % kLanes == 0 &&
           args->k % kDepth == 0 && panels_of(right_lanes) <= kMostDirectUses;
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

Sides sides_of(const GemmArgs& g, bool swapped) {
  Sides s{&g, swapped, rows_of_a(g), columns_of_b(g), g.m, g.n};
  if (swapped) std::swap(s.left, s.right), std::swap(s.left_lanes, s.right_lanes);
  s.left_cost = s.left_in_place() ? kReadCost : packing_cost(s.left, TileOrder::kByLane);
  s.right_cost = packing_cost(s.right, TileOrder::kByPair);
  return s;
}

Sides sides_of(const GemmArgs& g) {
  const Sides straight = sides_of(g, false), swapped = sides_of(g, true);
  return swapped.cost() < straight.cost() ? swapped : straight;
}

/// A part of a product whose operands are packed at one time.
struct Block {
  Sides sides;
  int64_t left = 0, lefts = 0, right = 0, rights = 0;  // lanes
  int64_t k = 0, depth = 0;
  bool in_place = false;  ///< the left operand is not packed

  int64_t left_bytes() const { return in_place ? 0 : panels_of(lefts) * steps_of(depth) * kTileBytes; }
  int64_t bytes() const { return left_bytes() + panels_of(rights) * steps_of(depth) * kTileBytes; }
  bool first() const { return k == 0; }
  bool last() const { return k + depth >= sides.args->k; }

  void pack_left(PanelRange p, std::byte* packed) const {
    pack(sides.left, TileOrder::kByLane, left + p.begin * kLanes, lanes(p, lefts), k, depth,
         packed + p.begin * steps_of(depth) * kTileBytes);
  }
  void pack_right(PanelRange p, std::byte* packed) const {
    pack(sides.right, TileOrder::kByPair, right + p.begin * kLanes, lanes(p, rights), k, depth,
         packed + left_bytes() + p.begin * steps_of(depth) * kTileBytes);
  }
  PanelProduct product(const std::byte* packed, float* sums) const {
    const int64_t steps = steps_of(depth);
    return {.args = sides.args,
            .swapped = sides.swapped,
            .left = in_place ? left_where_it_lies() : Panels{.data = packed, .panel_bytes = steps * kTileBytes},
            .right = {.data = packed + left_bytes(), .panel_bytes = steps * kTileBytes},
            .steps = steps,
            .left_lane = left,
            .left_lanes = lefts,
            .right_lane = right,
            .right_lanes = rights,
            .sums = sums,
            .first = first(),
            .last = last()};
  }

 private:
  Panels left_where_it_lies() const {
    constexpr int64_t kSize = 2;
    const Operand& o = sides.left;
    return {.data = static_cast<const std::byte*>(o.data) + (left * o.lane_stride + k) * kSize,
            .panel_bytes = kLanes * o.lane_stride * kSize,
            .step_bytes = kDepth * kSize,
            .row_bytes = o.lane_stride * kSize};
  }
  static int64_t lanes(PanelRange p, int64_t of) { return std::min(p.end * kLanes, of) - p.begin * kLanes; }
};

/// Calls body(block) for the blocks of a product; those of one part of C follow one another in rising k.
template <class Body>
void for_each_block(const Sides& sides, const Body& body) {
  const int64_t all_steps = steps_of(sides.args->k);
  const bool in_place = sides.left_in_place();
  if (sides.left_lanes == 0 || sides.right_lanes == 0) return;
  // The other side is at most a few panels, and there are no sums to keep.
  if (in_place && panels_of(sides.right_lanes) * all_steps * kTileBytes <= kPackedBytes) {
    body(Block{sides, 0, sides.left_lanes, 0, sides.right_lanes, 0, sides.args->k, true});
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
                   std::min(steps * kDepth, sides.args->k - k), in_place});
      }
    }
  }
}

/// How the panels of a side are cut into tasks.
struct Cut {
  int64_t panels = 0, part = 1;

  int64_t count() const { return ceil_div(panels, part); }
  PanelRange range(int64_t i) const { return {i * part, std::min((i + 1) * part, panels)}; }
};

Cut packing_cut(int64_t panels, int64_t cost) {
  return {panels, even_panels(panels, std::max<int64_t>(kLeastTaskCost / 2 / std::max<int64_t>(cost, 1), 1), 1)};
}

/// Tasks of one kind of a stage.
struct Segment {
  enum class Kind { kPackLeft, kPackRight, kMultiply } kind;
  size_t block;
  Cut left, right;
  /// The segment whose products of equal number come before, for the same parts of C; or none.
  std::optional<size_t> follows = {};

  int64_t tasks() const {
    return kind == Kind::kPackLeft ? left.count()
                                   : (kind == Kind::kPackRight ? right.count() : left.count() * right.count());
  }
};

/// Blocks [first_block, end_block), which share a slot of memory.
struct Stage {
  Stage(size_t first, bool split) : first_block(first), end_block(first), splits_k(split) {}

  size_t first_block, end_block;
  bool splits_k;  ///< one of the blocks of a product whose k is split: they share the memory of the sums
  int64_t bytes = 0;
  int64_t to_pack = 0, to_multiply = 0;  ///< tasks
  std::atomic<int64_t> packed{0}, multiplied{0};
};

template <class T>
void wait_until(const std::atomic<T>& counter, T count) {
  constexpr int kSpins = 4000;
  for (int spin = 0; counter.load(std::memory_order_acquire) < count; ++spin) {
    if (spin > kSpins) std::this_thread::yield();
    __builtin_ia32_pause();
  }
}

/// All products as one list of tasks. A task may wait for earlier ones; since tasks start in the order of the list, one
/// that is waited for has started.
class Schedule {
 public:
  /// `total`: the groups' cost.
  Schedule(ThreadPool& pool, const std::vector<Sides>& groups, int64_t total, const Workspace& workspace)
      : threads_(pool.size()), workspace_(workspace) {
    task_cost_ = std::max(kLeastTaskCost, total / (pool.size() * kTasksPerThread));
    for (const Sides& s : groups) {
      for_each_block(s, [&](const Block& block) { place(block); });
    }
    // Packing is one stage ahead of multiplying.
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      add_packing(stages_[stage]);
      if (stage > 0) add_products(stages_[stage - 1]);
    }
    if (!stages_.empty()) add_products(stages_.back());
    done_ = std::vector<std::atomic<int>>(static_cast<size_t>(tasks_));
  }

  void run(ThreadPool& pool) {
    pool.parallel_for(tasks_, [&](int64_t task, int) {
      const auto after = std::upper_bound(first_task_.begin(), first_task_.end(), task);
      const size_t i = static_cast<size_t>(after - first_task_.begin()) - 1;
      run(i, task - first_task_[i]);
    });
  }

 private:
  struct Placed {
    Block block;
    size_t stage;
    int64_t offset;  ///< in the stage's slot
  };

  void place(const Block& block) {
    const bool split = !(block.first() && block.last());
    const bool shares =
        !stages_.empty() && !split && !stages_.back().splits_k && stages_.back().bytes + block.bytes() <= kPackedBytes;
    if (!shares) stages_.emplace_back(blocks_.size(), split);
    Stage& stage = stages_.back();
    blocks_.push_back({block, stages_.size() - 1, stage.bytes});
    stage.end_block = blocks_.size();
    stage.bytes += block.bytes();
  }

  void add(const Segment& segment) {
    segments_.push_back(segment);
    first_task_.push_back(tasks_);
    tasks_ += segment.tasks();
  }

  void add_packing(Stage& stage) {
    for (size_t i = stage.first_block; i < stage.end_block; ++i) {
      const Block& b = blocks_[i].block;
      const int64_t steps = steps_of(b.depth);
      if (steps == 0) continue;
      if (!b.in_place) {
        add({Segment::Kind::kPackLeft, i, packing_cut(panels_of(b.lefts), steps * b.sides.left_cost), {}});
        stage.to_pack += segments_.back().tasks();
      }
      add({Segment::Kind::kPackRight, i, {}, packing_cut(panels_of(b.rights), steps * b.sides.right_cost)});
      stage.to_pack += segments_.back().tasks();
    }
  }

  void add_products(Stage& stage) {
    for (size_t i = stage.first_block; i < stage.end_block; ++i) {
      const Block& b = blocks_[i].block;
      if (!b.first()) {
        // The same parts of C as before.
        const size_t before = product_segment_[i - 1];
        add({Segment::Kind::kMultiply, i, segments_[before].left, segments_[before].right, before});
      } else {
        add(product_segment(b, i));
      }
      product_segment_.push_back(segments_.size() - 1);
      stage.to_multiply += segments_.back().tasks();
    }
  }

  /// Cuts C in nearly square parts: those read the operands least often.
  Segment product_segment(const Block& b, size_t index) const {
    const int64_t steps = std::max<int64_t>(steps_of(b.depth), 1);
    const int64_t tile_cost = steps * kProductCost + kStoreCost;
    const int64_t lefts = panels_of(b.lefts), rights = panels_of(b.rights);
    int64_t cost = task_cost_;
    if (!b.last()) cost = std::min(cost, lefts * rights * tile_cost / (threads_ * kSplitTasksPerThread));
    const int64_t tiles = std::max<int64_t>(cost / tile_cost, 1);
    const int64_t inners = b.sides.swapped ? lefts : rights, outers = b.sides.swapped ? rights : lefts;
    int64_t inner = std::min(inners, kInnerBytes / (steps * kTileBytes));
    while (inner > 2 && inner * inner > tiles && inner * outers > tiles) inner = (inner + 1) / 2;
    inner = even_panels(inners, inner, 2);
    const int64_t outer = even_panels(outers, std::max<int64_t>(tiles / inner, 1), 2);
    return {Segment::Kind::kMultiply,
            index,
            {lefts, b.sides.swapped ? inner : outer},
            {rights, b.sides.swapped ? outer : inner}};
  }

  void run(size_t index, int64_t task) {
    const Segment& segment = segments_[index];
    const Placed& placed = blocks_[segment.block];
    Stage& stage = stages_[placed.stage];
    std::byte* packed = workspace_.slot(static_cast<int64_t>(placed.stage)) + placed.offset;
    if (segment.kind == Segment::Kind::kMultiply) {
      wait_until(stage.packed, stage.to_pack);
      if (segment.follows) {
        wait_until(done(*segment.follows, task), 1);
      } else if (stage.splits_k) {
        for (size_t before = 1; before < kSlots; ++before) wait_for_products(placed.stage, before);
      }
      multiply(placed.block.product(packed, workspace_.sums()), segment.left.range(task / segment.right.count()),
               segment.right.range(task % segment.right.count()));
      done(index, task).store(1, std::memory_order_release);
      stage.multiplied.fetch_add(1, std::memory_order_release);
      return;
    }
    wait_for_products(placed.stage, kSlots);
    if (segment.kind == Segment::Kind::kPackLeft) {
      placed.block.pack_left(segment.left.range(task), packed);
    } else {
      placed.block.pack_right(segment.right.range(task), packed);
    }
    stage.packed.fetch_add(1, std::memory_order_release);
  }

  /// Waits for the products of the stage that is `before` stages before this one.
  void wait_for_products(size_t stage, size_t before) {
    if (stage < before) return;
    const Stage& earlier = stages_[stage - before];
    wait_until(earlier.multiplied, earlier.to_multiply);
  }

  std::atomic<int>& done(size_t segment, int64_t task) {
    return done_[static_cast<size_t>(first_task_[segment] + task)];
  }

  int64_t threads_;
  const Workspace& workspace_;
  int64_t task_cost_ = 0;
  std::vector<Placed> blocks_;
  std::vector<size_t> product_segment_;  ///< of each block
  std::deque<Stage> stages_;
  std::vector<Segment> segments_;
  std::vector<int64_t> first_task_;
  int64_t tasks_ = 0;
  std::vector<std::atomic<int>> done_;  ///< whether a task that multiplies has ended
};

void run_serially(const Sides& sides) {
  const Workspace& workspace = serial_workspace();
  for_each_block(sides, [&](const Block& block) {
    const PanelRange left{0, panels_of(block.lefts)}, right{0, panels_of(block.rights)};
    if (!block.in_place) block.pack_left(left, workspace.slot(0));
    block.pack_right(right, workspace.slot(0));
    multiply(block.product(workspace.slot(0), workspace.sums()), left, right);
  });
}

}  // namespace

bool takes(const GemmArgs& args) {
  return args.may_round || (args.a.dtype == DType::kBF16 && args.b.dtype == DType::kBF16);
}

void product(const GemmArgs& args) { run_serially(sides_of(args)); }

void products(ThreadPool& pool, std::span<const GemmArgs> groups) {
  std::vector<Sides> sides;
  sides.reserve(groups.size());
  int64_t total = 0;
  for (const GemmArgs& g : groups) {
    sides.push_back(sides_of(g));
    total += sides.back().cost();
  }
  if (pool.size() == 1 || total <= kSerialCost) {
    for (const Sides& s : sides) run_serially(s);
    return;
  }
  Schedule(pool, sides, total, pooled_workspace()).run(pool);
}

}  // namespace hone::amx
