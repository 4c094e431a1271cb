// The task list of AMX products: all products of a call become one list of tasks in which packing runs one stage ahead
// of multiplying, so that threads do not wait at barriers.
//
// Measured on sixteen virtual CPUs of an H100 host, 2026-11-22, `hone bench ops --device cpu`: 4.7 to 6.8 TFLOP/s with
// frozen dense weights; AMX reaches 14.4 from registers; torch (oneDNN) 4.2 to 5.1. Raw:
// bench/results/cpu-amx-16.jsonl.
#include "kernels/cpu/gemm/amx_products.h"

#include <atomic>
#include <deque>
#include <optional>
#include <vector>

#include "core/cpu/spin_wait.h"
#include "core/cpu/thread_pool.h"
#include "kernels/cpu/gemm/amx_blocks.h"

namespace hone::amx {

namespace {

/// Below this, waking the other threads costs more than they save.
constexpr int64_t kSerialCost = 20000;
/// Some 8 microseconds: long compared to a task's overhead, short compared to an imbalance.
constexpr int64_t kLeastTaskCost = 20000;
constexpr int64_t kTasksPerThread = 6;
/// Tasks per thread of one block, if k is split.
constexpr int64_t kSplitTasksPerThread = 2;
/// Blocks in memory at a time: one being multiplied, the next being packed, and one in between, so that threads do not
/// wait.
constexpr int64_t kSlots = 3;

/// Belongs to the thread that starts a product; the pool's threads use it.
const Workspace& pooled_workspace() {
  thread_local const Workspace workspace(kSlots);
  return workspace;
}

/// Division of an operand's panels into tasks.
struct Cut {
  int64_t panels = 0, part = 1;

  int64_t count() const { return ceil_div(panels, part); }
  PanelRange range(int64_t i) const { return {i * part, std::min((i + 1) * part, panels)}; }
};

Cut packing_cut(int64_t panels, int64_t cost) {
  return {panels, even_panels(panels, std::max<int64_t>(kLeastTaskCost / 2 / std::max<int64_t>(cost, 1), 1), 1)};
}

/// Tasks of the same kind in a stage.
struct Segment {
  enum class Kind { kPackLeft, kPackRight, kMultiply } kind;
  size_t block;
  Cut left, right;
  /// The segment whose products of the same index must come first, for the same parts of C; or none.
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
  bool splits_k;  ///< a block of a product with split k; such blocks share accumulators
  int64_t bytes = 0;
  int64_t to_pack = 0, to_multiply = 0;  ///< tasks
  std::atomic<int64_t> packed{0}, multiplied{0};
};

/// All products as one list of tasks. A task may wait for earlier ones; since tasks start in list order, those have
/// been started.
class Schedule {
 public:
  /// `total`: the groups' total cost.
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
    done_ = std::vector<std::atomic<int64_t>>(static_cast<size_t>(tasks_));
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
    int64_t offset;  ///< offset in the stage's slot
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
      const int64_t steps = b.steps();
      if (steps == 0) continue;
      if (!b.in_place) {
        add({Segment::Kind::kPackLeft, i, packing_cut(panels_of(b.lefts), steps * b.sides.left_cost), {}});
        stage.to_pack += segments_.back().tasks();
      }
      if (!b.beside) {
        add({Segment::Kind::kPackRight, i, {}, packing_cut(panels_of(b.rights), steps * b.sides.right_cost)});
        stage.to_pack += segments_.back().tasks();
      }
    }
  }

  void add_products(Stage& stage) {
    for (size_t i = stage.first_block; i < stage.end_block; ++i) {
      const Block& b = blocks_[i].block;
      if (!b.first()) {
        // The same parts of C as in the previous block.
        const size_t before = product_segment_[i - 1];
        add({Segment::Kind::kMultiply, i, segments_[before].left, segments_[before].right, before});
      } else {
        add(product_segment(b, i));
      }
      product_segment_.push_back(segments_.size() - 1);
      stage.to_multiply += segments_.back().tasks();
    }
  }

  /// Divides C into nearly square parts, which minimizes reads of the operands.
  Segment product_segment(const Block& b, size_t index) const {
    const int64_t steps = std::max<int64_t>(b.steps(), 1);
    const int64_t lefts = panels_of(b.lefts), rights = panels_of(b.rights);
    int64_t tile_cost = steps * kProductCost + kStoreCost;
    if (b.in_place) tile_cost += steps * kReadCost / rights;
    if (b.beside) {
      const int64_t panel_cost = lefts * tile_cost + steps * b.sides.right_cost;
      const int64_t part = even_panels(rights, std::max<int64_t>(task_cost_ / panel_cost, 1), 1);
      return {Segment::Kind::kMultiply, index, {lefts, lefts}, {rights, part}};
    }
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
    const Block& block = placed.block;
    std::byte* const left_panels = workspace_.slot(static_cast<int64_t>(placed.stage)) + placed.offset;
    std::byte* const right_panels = left_panels + block.left_bytes();
    // Also for products, even if k is 0 and nothing was packed: waiting for a stage implies waiting for all earlier
    // ones in its slot.
    wait_for_products(placed.stage, kSlots);
    if (segment.kind == Segment::Kind::kMultiply) {
      wait_for_tasks(stage.packed, stage.to_pack);
      if (segment.follows) {
        wait_for_tasks(done(*segment.follows, task), 1);
      } else if (stage.splits_k) {
        for (size_t before = 1; before < kSlots; ++before) wait_for_products(placed.stage, before);
      }
      const PanelRange left = segment.left.range(task / segment.right.count());
      const PanelRange right = segment.right.range(task % segment.right.count());
      if (block.beside) {
        multiply_beside(block, left_panels, right);
      } else {
        multiply(block.product(block.left_panels(left_panels), right_panels, workspace_.sums()), left, right);
      }
      done(index, task).store(1, std::memory_order_release);
      stage.multiplied.fetch_add(1, std::memory_order_release);
      return;
    }
    if (segment.kind == Segment::Kind::kPackLeft) {
      block.pack_left(segment.left.range(task), left_panels);
    } else {
      block.pack_right(segment.right.range(task), right_panels);
    }
    stage.packed.fetch_add(1, std::memory_order_release);
  }

  /// Waits for the products of the stage `before` stages before this one.
  void wait_for_products(size_t stage, size_t before) {
    if (stage < before) return;
    const Stage& earlier = stages_[stage - before];
    wait_for_tasks(earlier.multiplied, earlier.to_multiply);
  }

  std::atomic<int64_t>& done(size_t segment, int64_t task) {
    return done_[static_cast<size_t>(first_task_[segment] + task)];
  }

  int64_t threads_;
  const Workspace& workspace_;
  int64_t task_cost_ = 0;
  std::vector<Placed> blocks_;
  std::vector<size_t> product_segment_;  ///< per block
  std::deque<Stage> stages_;
  std::vector<Segment> segments_;
  std::vector<int64_t> first_task_;
  int64_t tasks_ = 0;
  std::vector<std::atomic<int64_t>> done_;  ///< per multiplying task: whether it has ended
};

void run_serially(const Sides& sides) {
  const Workspace& workspace = serial_workspace();
  for_each_block(sides, [&](const Block& block) {
    const PanelRange left{0, panels_of(block.lefts)}, right{0, panels_of(block.rights)};
    std::byte* const left_panels = workspace.slot(0);
    std::byte* const right_panels = left_panels + block.left_bytes();
    if (!block.in_place) block.pack_left(left, left_panels);
    if (block.beside) return multiply_beside(block, left_panels, right);
    block.pack_right(right, right_panels);
    multiply(block.product(block.left_panels(left_panels), right_panels, workspace.sums()), left, right);
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
