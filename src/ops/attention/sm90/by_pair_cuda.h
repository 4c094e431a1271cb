// Attention's backward on Hopper for heads of 256, where dk and dv of 64 keys take 128 accumulators per thread each. A
// pair of CTAs (a cluster) takes a tile of 128 keys, 64 each, and visits the same queries in step. Each CTA computes
// the scores, dk and dv of its keys. dq is a product over the keys of both: the CTAs exchange dS, and each computes
// half of the elements of dq, so what is added to dq in memory is half of what two single CTAs would add. Included by
// *_cuda.cu only.
//
//   warpgroup 0    S = K Qᵀ, dP = V dOᵀ, dK += dSᵀ Q   | P and dS to shared memory, dS also to the other CTA's
//   warpgroup 1    dV += Pᵀ dO, dQ = dS K              | over the keys of both CTAs, half of the elements
//
// One H200, causal, 16/2 heads, 2026-11-30: 439 TFLOP/s at 4 x 4096, 478 at 1 x 16384 (54 and 64 % of a square
// product). One CTA a tile of 64 keys, which computed S in both warpgroups, reached 307 and 322: it added twice as much
// to dq in memory, and the way to L2 was busy 66 % of the time (now 52 %), the tensor cores 40 % (50 %). What is left
// waits for dO, for which shared memory has room once: dV before dQ of the same step, or dQ one step behind (the
// kernel), 470 and 480 at 1 x 16384; dO loaded by the thread that loads Q: 465. Raw:
// bench/results/h200-attention-pairs-2026-11-30.txt.
#pragma once

#include "ops/attention/sm90/scores_cuda.h"

#ifdef __CUDACC__

namespace hone::cuda::sm90 {

// Registers per thread of the warpgroups; their sum is that of kMultiplyRegisters and kLoadRegisters. With 232 for dk,
// ptxas 13.0 serialises every wgmma.
constexpr int kDkRegisters = 240, kDvRegisters = 232, kPairLoadRegisters = 32;
static_assert(kDkRegisters + kDvRegisters + kPairLoadRegisters == 3 * 168);

struct PairShape {
  static constexpr int kElements = 256;  ///< a head's, in queries and keys as in values
  static constexpr int kKeys = 64;       ///< a CTA's
  static constexpr int kTileKeys = 2 * kKeys;
  static constexpr int kQueries = hopper_sizes(kElements, kElements)->queries;
  static constexpr int kDqElements = kElements / 2;  ///< those that a CTA adds to
};

/// A CTA's shared memory: 225 KB. Q, P and dS have two buffers; dO has one, which the products of a step leave early.
struct PairShared : HopperMemory {
  using Steps = QuerySteps<PairShape::kQueries, PairShape::kTileKeys>;
  using Keys = HopperOperand<PairShape::kElements, PairShape::kKeys>;
  using Queries = HopperOperand<PairShape::kElements, PairShape::kQueries>;
  /// Keys of the other CTA: this CTA's elements of dq.
  using OtherKeys = HopperOperand<PairShape::kDqElements, PairShape::kKeys>;
  /// For each key a line of 64 queries.
  using Probabilities = HopperOperand<PairShape::kQueries, PairShape::kKeys>;
  using Gradients = HopperOperand<PairShape::kQueries, PairShape::kTileKeys>;
  static constexpr int kBuffers = 2, kTurns = 2;
  /// When the loader writes a record, warpgroup 1 may not have read those of the three steps before.
  static constexpr int kRecords = 4;
  static constexpr int kItemBytes = 2 * Keys::kBytes + OtherKeys::kBytes;
  static constexpr int kStatsBytes = 2 * PairShape::kQueries * static_cast<int>(sizeof(float));
  static constexpr int kBarriers = 6 * kBuffers + 3 * kTurns + 6;
  static constexpr int kQueriesBegin = kItemBytes, kDoutBegin = kQueriesBegin + kBuffers * Queries::kBytes,
                       kProbabilitiesBegin = kDoutBegin + Queries::kBytes,
                       kGradientsBegin = kProbabilitiesBegin + kBuffers * Probabilities::kBytes,
                       kStatsBegin = kGradientsBegin + kBuffers * Gradients::kBytes,
                       kBarriersBegin = kStatsBegin + kBuffers * kStatsBytes,
                       kItemBegin = kBarriersBegin + 8 * kBarriers,
                       kStepsBegin = kItemBegin + static_cast<int>(sizeof(HopperItem)),
                       kIndexBegin = kStepsBegin + kRecords * static_cast<int>(sizeof(QueryStep));
  static constexpr size_t kBytes = 1024 + kIndexBegin + sizeof(int);
  static_assert(kBytes <= 227 * 1024 && kStatsBegin % 16 == 0 && kIndexBegin % 4 == 0);

  using HopperMemory::HopperMemory;

  __device__ Keys k() const { return {begin}; }
  __device__ Keys v() const { return {begin + Keys::kBytes}; }
  __device__ OtherKeys other_k() const { return {begin + 2 * Keys::kBytes}; }
  __device__ Queries q(int buffer) const { return {begin + kQueriesBegin + buffer * Queries::kBytes}; }
  __device__ Queries dout() const { return {begin + kDoutBegin}; }
  __device__ Probabilities probabilities(int buffer) const {
    return {begin + kProbabilitiesBegin + buffer * Probabilities::kBytes};
  }
  /// The keys of both CTAs, rank 0's first.
  __device__ Gradients gradients(int buffer) const { return {begin + kGradientsBegin + buffer * Gradients::kBytes}; }
  __device__ uint32_t stats_address(int buffer) const { return begin + kStatsBegin + buffer * kStatsBytes; }
  __device__ const float* shifts(int buffer) const {
    return reinterpret_cast<const float*>(memory + kStatsBegin + buffer * kStatsBytes);
  }
  __device__ const float* deltas(int buffer) const { return shifts(buffer) + PairShape::kQueries; }
  __device__ HopperItem& item() const { return *reinterpret_cast<HopperItem*>(memory + kItemBegin); }
  __device__ QueryStep& step(int record) const { return reinterpret_cast<QueryStep*>(memory + kStepsBegin)[record]; }
  /// The index of the next item, which rank 0 passes to rank 1.
  __device__ const volatile int& index() const { return *reinterpret_cast<volatile int*>(memory + kIndexBegin); }
  __device__ uint32_t index_address() const { return begin + kIndexBegin; }

  __device__ uint32_t barrier(int i) const { return begin + kBarriersBegin + 8 * i; }
  __device__ uint32_t q_full(int i) const { return barrier(i); }
  __device__ uint32_t q_empty(int i) const { return barrier(kBuffers + i); }
  __device__ uint32_t probabilities_full(int i) const { return barrier(2 * kBuffers + i); }
  __device__ uint32_t probabilities_empty(int i) const { return barrier(3 * kBuffers + i); }
  __device__ uint32_t gradients_full(int i) const { return barrier(4 * kBuffers + i); }
  __device__ uint32_t gradients_empty(int i) const { return barrier(5 * kBuffers + i); }
  __device__ uint32_t turn(int i) const { return barrier(6 * kBuffers + i); }
  __device__ uint32_t added(int i) const { return barrier(6 * kBuffers + kTurns + i); }
  __device__ uint32_t shown(int i) const { return barrier(6 * kBuffers + 2 * kTurns + i); }
  __device__ uint32_t dout_full() const { return barrier(6 * kBuffers + 3 * kTurns); }
  __device__ uint32_t dout_empty() const { return barrier(6 * kBuffers + 3 * kTurns + 1); }
  __device__ uint32_t keys_full() const { return barrier(6 * kBuffers + 3 * kTurns + 2); }
  __device__ uint32_t keys_empty() const { return barrier(6 * kBuffers + 3 * kTurns + 3); }
  /// Rank 1's: an index has come. Rank 0's: rank 1 has taken it.
  __device__ uint32_t index_full() const { return barrier(6 * kBuffers + 3 * kTurns + 4); }
  __device__ uint32_t index_taken() const { return barrier(6 * kBuffers + 3 * kTurns + 5); }

  /// Called by one thread; cluster_sync must follow.
  __device__ void init_barriers() const {
    constexpr int kWarps = kMultiplyingWarps / 2;  // a warpgroup's
    for (int i = 0; i < kBuffers; ++i) {
      barrier_init(q_full(i), 1);
      barrier_init(q_empty(i), kWarps);
      barrier_init(probabilities_full(i), kWarps);
      barrier_init(probabilities_empty(i), kWarps);
      barrier_init(gradients_full(i), 1);            // for this CTA's half; the other one's comes as bytes
      barrier_init(gradients_empty(i), 2 * kWarps);  // those of both CTAs
    }
    for (int i = 0; i < kTurns; ++i) {
      barrier_init(turn(i), 1);
      barrier_init(added(i), kWarps);
      barrier_init(shown(i), 1);
    }
    barrier_init(dout_full(), 1);
    barrier_init(dout_empty(), kMultiplyingWarps);
    barrier_init(keys_full(), 1);
    barrier_init(keys_empty(), kMultiplyingWarps + 3);  // and the threads for dO and for the order of dq
    barrier_init(index_full(), 1);
    barrier_init(index_taken(), 1);
    barrier_init_done();
  }
};

/// Called by one thread of each CTA: the index of the pair's next item, or -1. `handed` is its place in the passing of
/// indices.
__device__ inline int take_for_pair(const TileOrder& order, const PairShared& shared, uint32_t rank,
                                    RingPosition<1>& handed) {
  int index;
  if (rank == 0) {
    index = order.take();
    barrier_wait(shared.index_taken(), handed.phase ^ 1);
    store_at(shared.index_address(), index, shared.index_full(), 1);
  } else {
    barrier_arrive_expect(shared.index_full(), sizeof(int));
    barrier_wait(shared.index_full(), handed.phase);
    index = shared.index();
    barrier_arrive_at(shared.index_taken(), 0);
  }
  handed.advance();
  return index;
}

template <class Maps>
__device__ inline void load_for_pair(const Maps& maps, const HopperBackward& args, const PairShared& shared,
                                     uint32_t rank) {
  constexpr int kKeys = PairShape::kKeys;
  RingPosition<PairShared::kBuffers> ring;
  RingPosition<PairShared::kRecords> records;
  RingPosition<1> keys_ring, handed;
  for (;;) {
    const int index = take_for_pair(args.order, shared, rank, handed);
    if (index < 0) {
      barrier_wait(shared.keys_empty(), keys_ring.phase ^ 1);
      shared.item().steps = -1;
      return barrier_arrive(shared.keys_full());
    }
    const auto [tile, kv_head] = args.order.at(index);
    PairShared::Steps at(tile, args.window, args.num_heads / args.num_kv_heads);
    barrier_wait(shared.keys_empty(), keys_ring.phase ^ 1);
    keys_ring.advance();
    shared.item() = {tile, kv_head, at.count};
    barrier_arrive_expect(shared.keys_full(), PairShared::kItemBytes);
    const int key = tile.begin + tile.first, own = key + kKeys * static_cast<int>(rank);
    const int other = key + kKeys - kKeys * static_cast<int>(rank);
    shared.k().load(maps.k, kv_head, own, shared.keys_full());
    shared.v().load(maps.v, kv_head, own, shared.keys_full());
    shared.other_k().load(maps.k, kv_head, other, shared.keys_full(), PairShape::kDqElements * static_cast<int>(rank));
    for (int i = 0; i < at.count; ++i, at.advance(), ring.advance(), records.advance()) {
      const QueryStep step = at.record(kv_head);
      const uint32_t full = shared.q_full(ring.stage);
      barrier_wait(shared.q_empty(ring.stage), ring.phase ^ 1);
      shared.step(records.stage) = step;
      barrier_arrive_expect(full, PairShared::Queries::kBytes + PairShared::kStatsBytes);
      shared.q(ring.stage).load(maps.q, step.head, tile.begin + step.query, full);
      const int64_t stats = step.head * args.stats_rows + tile.stats + step.query;
      const uint32_t stats_address = shared.stats_address(ring.stage);
      copy_bytes(stats_address, args.shifts + stats, PairShared::kStatsBytes / 2, full);
      copy_bytes(stats_address + PairShared::kStatsBytes / 2, args.deltas + stats, PairShared::kStatsBytes / 2, full);
    }
  }
}

/// Called by another thread, so that queries do not wait for room for dO.
template <class Maps>
__device__ inline void load_douts(const Maps& maps, const HopperBackward& args, const PairShared& shared) {
  RingPosition<1> keys_ring, dout_ring;
  for (;; keys_ring.advance()) {
    barrier_wait(shared.keys_full(), keys_ring.phase);
    const HopperItem item = shared.item();
    if (item.steps < 0) return;
    barrier_arrive(shared.keys_empty());
    PairShared::Steps at(item.tile, args.window, args.num_heads / args.num_kv_heads);
    for (int i = 0; i < at.count; ++i, at.advance(), dout_ring.advance()) {
      const QueryStep step = at.record(item.kv_head);
      barrier_wait(shared.dout_empty(), dout_ring.phase ^ 1);
      barrier_arrive_expect(shared.dout_full(), PairShared::Queries::kBytes);
      shared.dout().load(maps.dout, step.head, item.tile.begin + step.query, shared.dout_full());
    }
  }
}

/// One lane of the warp arrives, after all of it.
__device__ inline void warp_arrive(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

/// A step's places in the rings, by its number since the kernel began.
struct PairStep {
  uint32_t number = 0;

  __device__ int buffer() const { return static_cast<int>(number % PairShared::kBuffers); }
  __device__ uint32_t phase() const { return number / PairShared::kBuffers % 2; }  ///< that buffer's
  __device__ uint32_t dout_phase() const { return number % 2; }
  __device__ int record() const { return static_cast<int>(number % PairShared::kRecords); }
};

__device__ inline void add_dk(const HopperBackward& args, const PairShared& shared, uint32_t rank) {
  constexpr int kQueries = PairShape::kQueries, kScores = kQueries / 2;
  const float scale_log2 = args.scale * 1.44269504088896f;
  PairStep at;
  RingPosition<1> keys_ring;
  for (;; keys_ring.advance()) {
    barrier_wait(shared.keys_full(), keys_ring.phase);
    const int steps = shared.item().steps;
    if (steps < 0) return;
    const int key = shared.item().tile.first + PairShape::kKeys * static_cast<int>(rank);
    float dk[PairShape::kElements / 2] = {};
    for (int i = 0; i < steps; ++i, ++at.number) {
      const int buffer = at.buffer();
      float s[kScores], dp[kScores];
      barrier_wait(shared.q_full(buffer), at.phase());
      wgmma_fence();
      multiply_heads<PairShape::kElements>(s, shared.k(), 0, shared.q(buffer));
      wgmma_commit();
      barrier_wait(shared.dout_full(), at.dout_phase());
      wgmma_fence();
      multiply_heads<PairShape::kElements>(dp, shared.v(), 0, shared.dout());
      wgmma_commit();
      wgmma_wait<1>();  // the scores, and dk of the step before
      hold(s);
      if (i > 0) warp_arrive(shared.q_empty(buffer ^ 1));

      make_probabilities(s, scale_log2, OfQueries<kScores>(shared.shifts(buffer)));
      const int query = shared.step(at.record()).query;
      if (query < key + PairShape::kKeys || (args.window > 0 && query + kQueries > key + args.window)) {
        hide_unseen(s, query, key, args.window);
      }
      uint32_t factor[kScores / 2], gradient_factor[kScores / 2];
      pack_sums(factor, s);
      barrier_wait(shared.probabilities_empty(buffer), at.phase() ^ 1);
      share(shared.probabilities(buffer), factor, 0);
      fence_for_async_reads();
      warp_arrive(shared.probabilities_full(buffer));

      const OfQueries<kScores> deltas(shared.deltas(buffer));
      wgmma_wait<0>();
      hold(dp);
      warp_arrive(shared.dout_empty());
      make_score_gradients(gradient_factor, dp, factor, deltas);
      barrier_wait(shared.gradients_empty(buffer), at.phase() ^ 1);
      const auto gradients = shared.gradients(buffer);
      share(gradients, gradient_factor, PairShape::kKeys * static_cast<int>(rank));
      fence_for_async_reads();
      named_sync(1, 128);
      if (threadIdx.x == 0) {
        constexpr uint32_t kHalf = PairShared::Gradients::kBytes / 2;
        barrier_arrive_expect(shared.gradients_full(buffer), kHalf);
        copy_to_cta(gradients.address + kHalf * rank, kHalf, shared.gradients_full(buffer), rank ^ 1);
      }
      __syncwarp();
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < kQueries / 16; ++j) add_columns(dk, gradient_factor + 4 * j, shared.q(buffer).columns(j));
      wgmma_commit();
    }
    wgmma_wait<0>();
    warp_arrive(shared.q_empty(at.buffer() ^ 1));
    hold(dk);
    const AttentionTile tile = shared.item().tile;
    const int kv_head = shared.item().kv_head;
    warp_arrive(shared.keys_empty());
    store_sums(args.dk, dk, args.scale, tile, key, kv_head, args.num_kv_heads, args.head_dim);
  }
}

/// This CTA's elements of dq of step `at`: dS of both CTAs times their keys. Calls done_before() once the
/// products that the warpgroup has begun before are done.
template <class DoneBefore>
__device__ inline void add_dq(const HopperBackward& args, const PairShared& shared, uint32_t rank, PairStep at,
                              RingPosition<PairShared::kTurns>& turns, const DoneBefore& done_before) {
  constexpr int kQueries = PairShape::kQueries, kPart = PairShape::kDqElements;
  const int buffer = at.buffer();
  barrier_wait(shared.gradients_full(buffer), at.phase());
  float dq[kPart / 2];
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < PairShape::kTileKeys / 16; ++j) {
    constexpr int kStepsOfCta = PairShape::kKeys / 16;
    const bool own = j / kStepsOfCta == static_cast<int>(rank);
    const uint64_t keys = own ? shared.k().columns(j % kStepsOfCta, kPart / 64 * static_cast<int>(rank))
                              : shared.other_k().columns(j % kStepsOfCta);
    Wgmma<kPart, true, true>::add(dq, shared.gradients(buffer).columns(j), keys, j > 0);
  }
  wgmma_commit();
  wgmma_wait<1>();
  done_before();
  wgmma_wait<0>();
  hold(dq);
  const QueryStep step = shared.step(at.record());
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    barrier_arrive_at(shared.gradients_empty(buffer), 0);
    barrier_arrive_at(shared.gradients_empty(buffer), 1);
  }
  const bool last = step.turn == step.turns - 1;
  if (step.turns > 1) {
    constexpr int kBlock = kQueries * PairShape::kElements;
    float* sum = args.partial_dq + (step.head * args.query_blocks + step.block) * kBlock + rank * (kQueries * kPart) +
                 4 * (threadIdx.x % 128);
    barrier_wait(shared.turn(turns.stage), turns.phase);
    if (last) {
      take_parts(sum, dq);
    } else {
      add_part(sum, dq, step.turn == 0);
    }
    warp_arrive(shared.added(turns.stage));
    turns.advance();
  }
  if (last) {
    store_sums(args.dq, dq, args.scale, shared.item().tile, step.query, step.head, args.num_heads, args.head_dim,
               kPart * static_cast<int>(rank));
  }
}

/// dq is one step behind dv: then dv does not wait until the CTAs have exchanged dS, and the next dO comes early.
__device__ inline void add_dv_and_dq(const HopperBackward& args, const PairShared& shared, uint32_t rank) {
  PairStep at;
  RingPosition<PairShared::kTurns> turns;
  RingPosition<1> keys_ring;
  for (;; keys_ring.advance()) {
    barrier_wait(shared.keys_full(), keys_ring.phase);
    const int steps = shared.item().steps;
    if (steps < 0) return;
    float dv[PairShape::kElements / 2] = {};
    for (int i = 0; i < steps; ++i, ++at.number) {
      const int buffer = at.buffer();
      barrier_wait(shared.dout_full(), at.dout_phase());
      barrier_wait(shared.probabilities_full(buffer), at.phase());
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < PairShape::kQueries / 16; ++j) {
        Wgmma<PairShape::kElements, false, true>::add(dv, shared.probabilities(buffer).rows(0, j),
                                                      shared.dout().columns(j), true);
      }
      wgmma_commit();
      const auto release = [&] {
        warp_arrive(shared.dout_empty());
        warp_arrive(shared.probabilities_empty(buffer));
      };
      if (i > 0) {
        add_dq(args, shared, rank, {at.number - 1}, turns, release);
      } else {
        wgmma_wait<0>();
        release();
      }
    }
    add_dq(args, shared, rank, {at.number - 1}, turns, [] {});
    hold(dv);
    const AttentionTile tile = shared.item().tile;
    const int kv_head = shared.item().kv_head;
    warp_arrive(shared.keys_empty());
    store_sums(args.dv, dv, 1.0f, tile, tile.first + PairShape::kKeys * static_cast<int>(rank), kv_head,
               args.num_kv_heads, args.v_head_dim);
  }
}

}  // namespace hone::cuda::sm90

#endif  // __CUDACC__
