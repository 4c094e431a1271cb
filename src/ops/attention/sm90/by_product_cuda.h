// The main loop of attention's backward on Hopper for heads of 256, where dk and dv of 64 keys take 128 accumulators
// per thread each. Both warpgroups compute the scores; the first continues with dP and dk, the second with dv and, from
// the dS that the first writes to shared memory, dq. Six products instead of five, three per warpgroup. Included by
// *_cuda.cu only.
#pragma once

#include "ops/attention/sm90/scores_cuda.h"

#ifdef __CUDACC__

namespace hone::cuda::sm90 {

/// A warpgroup's positions in the rings.
template <class Shape>
struct HopperPlace {
  RingPosition<Shape::kStages> ring;
  RingPosition<HopperShared<Shape>::kBuffers> buffers;
  RingPosition<1> keys;
};

/// The probabilities of a step in bfloat16; `s` holds the scores.
template <class Shape>
__device__ inline void pack_probabilities(uint32_t (&factor)[Shape::kScores / 2], float (&s)[Shape::kScores],
                                          const HopperBackward& args, const HopperShared<Shape>& shared, int stage) {
  const int query = shared.step(stage).query, key = shared.item().tile.first;
  make_probabilities(s, args.scale * 1.44269504088896f, OfQueries<Shape::kScores>(shared.shifts(stage)));
  if (query < key + Shape::kKeys || (args.window > 0 && query + Shape::kQueries > key + args.window)) {
    hide_unseen(s, query, key, args.window);
  }
  pack_sums(factor, s);
}

template <class Shape>
__device__ inline void add_dk(const HopperBackward& args, const HopperShared<Shape>& shared) {
  const bool first_lane = threadIdx.x % 32 == 0;
  HopperPlace<Shape> place;
  for (;; place.keys.advance()) {
    barrier_wait(shared.keys_full(), place.keys.phase);
    const int steps = shared.item().steps;
    if (steps < 0) return;
    float dk[Shape::kElements / 2] = {};
    for (int i = 0; i < steps; ++i, place.ring.advance(), place.buffers.advance()) {
      const int stage = place.ring.stage, buffer = place.buffers.stage;
      barrier_wait(shared.full(stage), place.ring.phase);
      float s[Shape::kScores], dp[Shape::kScores];
      wgmma_fence();
      multiply_heads<Shape::kElements>(s, shared.k(), 0, shared.q(stage));
      wgmma_commit();
      multiply_heads<Shape::kValueElements>(dp, shared.v(), 0, shared.dout(stage));
      wgmma_commit();
      wgmma_wait<1>();
      hold(s);
      uint32_t factor[Shape::kScores / 2], gradient_factor[Shape::kScores / 2];
      pack_probabilities<Shape>(factor, s, args, shared, stage);
      const OfQueries<Shape::kScores> deltas(shared.deltas(stage));
      wgmma_wait<0>();
      hold(dp);
      make_score_gradients(gradient_factor, dp, factor, deltas);
      barrier_wait(shared.gradients_empty(buffer), place.buffers.phase ^ 1);
      share(shared.gradients(buffer), gradient_factor, 0);
      fence_for_async_reads();
      __syncwarp();
      if (first_lane) barrier_arrive(shared.gradients_full(buffer));
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < Shape::kQueries / 16; ++j) {
        add_columns(dk, gradient_factor + 4 * j, shared.q(stage).columns(j));
      }
      wgmma_commit();
      wgmma_wait<0>();
      if (first_lane) barrier_arrive(shared.empty(stage));
    }
    hold(dk);
    const AttentionTile tile = shared.item().tile;
    const int kv_head = shared.item().kv_head;
    __syncwarp();
    if (first_lane) barrier_arrive(shared.keys_empty());
    store_sums(args.dk, dk, args.scale, tile, tile.first, kv_head, args.num_kv_heads, args.head_dim);
  }
}

template <class Shape>
__device__ inline void add_dv_and_dq(const HopperBackward& args, const HopperShared<Shape>& shared) {
  constexpr int kElementsOfPart = 128;  // elements of dq: as many as fit in registers together with dv
  const bool first_lane = threadIdx.x % 32 == 0;
  HopperPlace<Shape> place;
  RingPosition<HopperShared<Shape>::kTurns> turns;
  for (;; place.keys.advance()) {
    barrier_wait(shared.keys_full(), place.keys.phase);
    const int steps = shared.item().steps;
    if (steps < 0) return;
    float dv[Shape::kValueElements / 2] = {};
    for (int i = 0; i < steps; ++i, place.ring.advance(), place.buffers.advance()) {
      const int stage = place.ring.stage, buffer = place.buffers.stage;
      barrier_wait(shared.full(stage), place.ring.phase);
      float s[Shape::kScores];
      wgmma_fence();
      multiply_heads<Shape::kElements>(s, shared.k(), 0, shared.q(stage));
      wgmma_commit();
      wgmma_wait<0>();
      hold(s);
      uint32_t factor[Shape::kScores / 2];
      pack_probabilities<Shape>(factor, s, args, shared, stage);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < Shape::kQueries / 16; ++j) add_columns(dv, factor + 4 * j, shared.dout(stage).columns(j));
      wgmma_commit();
      barrier_wait(shared.gradients_full(buffer), place.buffers.phase);
      const QueryStep step = shared.step(stage);
      const bool last = step.turn == step.turns - 1;
      constexpr int kBlock = Shape::kQueries * Shape::kElements;
      float* partial =
          args.partial_dq + (step.head * args.query_blocks + step.block) * kBlock + 4 * (threadIdx.x % 128);
      for (int part = 0; part < Shape::kElements / kElementsOfPart; ++part) {
        float dq[kElementsOfPart / 2];
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < Shape::kKeys / 16; ++j) {
          Wgmma<kElementsOfPart, true, true>::add(dq, shared.gradients(buffer).columns(j),
                                                  shared.k().columns(j, part * (kElementsOfPart / 64)), j > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        hold(dq);
        if (step.turns > 1) {
          if (part == 0) barrier_wait(shared.turn(turns.stage), turns.phase);
          float* at = partial + part * (Shape::kQueries * kElementsOfPart);
          if (last) {
            take_parts(at, dq);
          } else {
            add_part(at, dq, step.turn == 0);
          }
        }
        if (last) {
          store_sums(args.dq, dq, args.scale, shared.item().tile, step.query, step.head, args.num_heads, args.head_dim,
                     part * kElementsOfPart);
        }
      }
      __syncwarp();
      if (first_lane) {
        if (step.turns > 1) barrier_arrive(shared.added(turns.stage));
        barrier_arrive(shared.gradients_empty(buffer));
        barrier_arrive(shared.empty(stage));
      }
      if (step.turns > 1) turns.advance();
    }
    hold(dv);
    const AttentionTile tile = shared.item().tile;
    const int kv_head = shared.item().kv_head;
    __syncwarp();
    if (first_lane) barrier_arrive(shared.keys_empty());
    store_sums(args.dv, dv, 1.0f, tile, tile.first, kv_head, args.num_kv_heads, args.v_head_dim);
  }
}

}  // namespace hone::cuda::sm90

#endif  // __CUDACC__
