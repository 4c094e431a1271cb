// The backward pass of attention on Hopper: a CTA owns 128 keys of one key-value head (of heads that fill its
// registers, a pair of CTAs 64 each) and visits the queries that attend to them, last ones first; dk and dv stay in
// registers.
//
// The order of dq. A query's dq is a sum over CTAs, which add in document order (turns): the first stores, the next
// ones add with red.add in the accumulators' layout, the last one, on the diagonal, finishes. The previous tile of a
// document comes earlier in the list and visits the same queries in the same order, so a CTA rarely waits, and only for
// CTAs that have started:
//   queries, last first   Q7      Q6      Q5      Q4   …
//   keys 0                store   store   store   store
//   keys 1                        add Q7  add Q6  add Q5
//   keys 2                                add Q7  add Q6
//
// Shared memory for heads of 128: K and V 64 KB, 3 stages of Q and dO 96 KB, two buffers of dS 32 KB. Registers: 240
// per consumer thread, 24 per thread of the third warpgroup, in which three threads are active: one loads, two maintain
// the order of dq.
//
// One H200, causal, model TFLOP/s, `hone bench ops --op attention`, 2026-11-22: 4 x 4096, 32/4 heads of 128: 418 (56 %
// of a square product; cuDNN, dense and not deterministic, 487); heads of 64: 393 (355). Raw:
// bench/results/h200-attention.txt. In the comparison of tiers, 2026-11-23: 466, 377
// (bench/results/sm80-kernels-2026-11-23.txt). Heads of 256: by_pair_cuda.h. Tried without gain: one thread that both
// waits for turns and publishes them, which cost each step a round trip to memory.
//
// With few key-value heads at a time (attention_order.h), old and new by turns on one H200, 2026-11-29: 128/128 heads
// of 192 and 128: 293 -> 404 at 4 x 4096, 314 -> 439 at 1 x 16384 (50 % and 54 % of a square product), of which 303 and
// 317 without the order (by_keys_cuda.h); 32/4 of 128: 425 -> 440 and 471 -> 477. Heads at a time, 4 x 4096, 128/128
// heads: 128: 303; 32: 299; 16: 365; 8: 383; 4: 394; 2: 397; 1: 401; 32/4 heads of 128: 4: 425; 2: 443; 1: 418. Raw:
// bench/results/h200-attention-order-2026-11-29.txt.
#include "ops/attention/sm90/by_keys_cuda.h"
#include "ops/attention/sm90/by_pair_cuda.h"

namespace hone::cuda::sm90 {

namespace {

struct Maps {
  CUtensorMap q, dout, k, v;
};

template <class Shape>
__device__ void load(const Maps& maps, const HopperBackward& args, const HopperShared<Shape>& shared) {
  using Shared = HopperShared<Shape>;
  RingPosition<Shape::kStages> ring;
  RingPosition<1> keys_ring;
  for (;;) {
    const int index = args.order.take();
    if (index < 0) {
      barrier_wait(shared.keys_empty(), keys_ring.phase ^ 1);
      shared.item().steps = -1;
      return barrier_arrive(shared.keys_full());
    }
    const auto [tile, kv_head] = args.order.at(index);
    if (tile.first >= tile.length) continue;
    typename Shared::Steps at(tile, args.window, args.num_heads / args.num_kv_heads);
    barrier_wait(shared.keys_empty(), keys_ring.phase ^ 1);
    keys_ring.advance();
    shared.item() = {tile, kv_head, at.count};
    barrier_arrive_expect(shared.keys_full(), Shared::kItemBytes);
    shared.k().load(maps.k, kv_head, tile.begin + tile.first, shared.keys_full());
    shared.v().load(maps.v, kv_head, tile.begin + tile.first, shared.keys_full());
    for (int i = 0; i < at.count; ++i, at.advance(), ring.advance()) {
      const QueryStep step = at.record(kv_head);
      const uint32_t full = shared.full(ring.stage);
      barrier_wait(shared.empty(ring.stage), ring.phase ^ 1);
      shared.step(ring.stage) = step;
      barrier_arrive_expect(full, Shared::kStageBytes + Shared::kStatsBytes);
      shared.q(ring.stage).load(maps.q, step.head, tile.begin + step.query, full);
      shared.dout(ring.stage).load(maps.dout, step.head, tile.begin + step.query, full);
      const int64_t stats = step.head * args.stats_rows + tile.stats + step.query;
      copy_bytes(shared.stats_address(ring.stage), args.shifts + stats, Shared::kStatsBytes / 2, full);
      copy_bytes(shared.stats_address(ring.stage) + Shared::kStatsBytes / 2, args.deltas + stats,
                 Shared::kStatsBytes / 2, full);
    }
  }
}

/// Called by one thread: calls visit(counter of tiles that have added, step) for each step whose dq is a sum. `turns`
/// are this CTA's: [Hq, query_blocks].
template <class Shared, class Visit>
__device__ void for_each_turn(const HopperBackward& args, int* turns, const Shared& shared, const Visit& visit) {
  RingPosition<1> keys_ring;
  for (;; keys_ring.advance()) {
    barrier_wait(shared.keys_full(), keys_ring.phase);
    const HopperItem item = shared.item();
    if (item.steps < 0) return;
    barrier_arrive(shared.keys_empty());
    typename Shared::Steps at(item.tile, args.window, args.num_heads / args.num_kv_heads);
    for (int i = 0; i < at.count; ++i, at.advance()) {
      const QueryStep step = at.record(item.kv_head);
      if (step.turns > 1) visit(turns + step.head * args.query_blocks + step.block, step);
    }
  }
}

/// One thread polls the counters in memory, another one publishes this CTA's additions, so the MMA warps never stall on
/// a round trip to memory.
template <class Shared>
__device__ void wait_for_turns(const HopperBackward& args, int* turns, const Shared& shared) {
  RingPosition<Shared::kTurns> ring;
  for_each_turn(args, turns, shared, [&](const int* added, const QueryStep& step) {
    barrier_wait(shared.shown(ring.stage), ring.phase ^ 1);
    while (load_acquire(added) != step.turn) {
    }
    barrier_arrive(shared.turn(ring.stage));
    ring.advance();
  });
}
template <class Shared>
__device__ void show_turns(const HopperBackward& args, int* turns, const Shared& shared) {
  RingPosition<Shared::kTurns> ring;
  for_each_turn(args, turns, shared, [&](int* added, const QueryStep& step) {
    barrier_wait(shared.added(ring.stage), ring.phase);
    if (step.turn < step.turns - 1) store_release(added, step.turn + 1);
    barrier_arrive(shared.shown(ring.stage));
    ring.advance();
  });
}

template <class Shape>
__global__ void __launch_bounds__(kHopperThreads, 1)
    backward_kernel(const __grid_constant__ Maps maps, const __grid_constant__ HopperBackward args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char dynamic[];
  const HopperShared<Shape> shared(dynamic);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  if (threadIdx.x >= 256) {
    fewer_registers<kLoadRegisters>();
    if (threadIdx.x == 256) load<Shape>(maps, args, shared);
    if (threadIdx.x == 288) wait_for_turns(args, args.turns, shared);
    if (threadIdx.x == 320) show_turns(args, args.turns, shared);
  } else {
    more_registers<kMultiplyRegisters>();
    multiply_by_keys(args, shared);
  }
#endif
}

/// Launched in clusters of two CTAs.
__global__ void __launch_bounds__(kHopperThreads, 1)
    pair_backward_kernel(const __grid_constant__ Maps maps, const __grid_constant__ HopperBackward args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char dynamic[];
  const PairShared shared(dynamic);
  const uint32_t rank = cluster_rank();
  if (threadIdx.x == 0) shared.init_barriers();
  __syncwarp();
  cluster_sync();
  if (threadIdx.x >= 256) {
    fewer_registers<kPairLoadRegisters>();
    int* const turns = args.turns + rank * args.num_heads * args.query_blocks;
    if (threadIdx.x == 256) load_for_pair(maps, args, shared, rank);
    if (threadIdx.x == 352) load_douts(maps, args, shared);
    if (threadIdx.x == 288) wait_for_turns(args, turns, shared);
    if (threadIdx.x == 320) show_turns(args, turns, shared);
  } else if (threadIdx.x < 128) {
    more_registers<kDkRegisters>();
    add_dk(args, shared, rank);
  } else {
    more_registers<kDvRegisters>();
    add_dv_and_dq(args, shared, rank);
  }
  __syncwarp();
  cluster_sync();  // the other CTA may write to this one's shared memory until here
#endif
}

Maps maps_of(const AttentionBackwardArgs& args, int queries, int keys) {
  const AttentionArgs& forward = args.forward;
  const AttentionOptions& options = forward.options;
  return {.q = head_map(forward.q, options.num_heads, options.head_dim, queries),
          .dout = head_map(args.dout, options.num_heads, options.v_head_dim, queries),
          .k = head_map(forward.k, options.num_kv_heads, options.head_dim, keys),
          .v = head_map(forward.v, options.num_kv_heads, options.v_head_dim, keys)};
}

/// Launches a kernel of `kCtas` CTAs, a cluster, an item.
template <int kCtas, class Kernel>
void launch(const Context& context, const AttentionBackwardArgs& args, const HopperScratch& scratch, Kernel* kernel,
            const Maps& maps, size_t bytes) {
  const TileOrder order(context, args.forward, scratch.tiles, TileWork::kQueries);
  const HopperBackward kernel_args(args, scratch, order);
  allow_shared_memory(kernel, bytes);
  const int64_t items = scratch.tiles.count * args.forward.options.num_kv_heads;
  const auto blocks = kCtas * std::min<int64_t>(queue_of(context).multiprocessors() / kCtas, items);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kCtas, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(blocks);
  config.blockDim = kHopperThreads;
  config.dynamicSmemBytes = bytes;
  config.stream = stream_of(context);
  config.attrs = &cluster;
  config.numAttrs = kCtas > 1 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, maps, kernel_args), "computing the gradients of attention");
}

template <class Shape>
void launch(const Context& context, const AttentionBackwardArgs& args, const HopperScratch& scratch) {
  launch<1>(context, args, scratch, backward_kernel<Shape>, maps_of(args, Shape::kQueries, Shape::kKeys),
            HopperShared<Shape>::kBytes);
}

}  // namespace

void hopper_backward(const Context& context, const AttentionBackwardArgs& args, const HopperScratch& scratch) {
  switch (hopper_sizes(args.forward.options.head_dim, args.forward.options.v_head_dim) - kHopperSizes) {
    case 0:
      return launch<HopperShape<64, 64>>(context, args, scratch);
    case 1:
      return launch<HopperShape<128, 128>>(context, args, scratch);
    case 2:
      return launch<HopperShape<192, 128>>(context, args, scratch);
    default:
      return launch<2>(context, args, scratch, pair_backward_kernel,
                       maps_of(args, PairShape::kQueries, PairShape::kKeys), PairShared::kBytes);
  }
}

}  // namespace hone::cuda::sm90
