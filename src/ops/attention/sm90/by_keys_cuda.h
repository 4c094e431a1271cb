// The main loop of attention's backward on Hopper in which each warpgroup has half of a tile's 128 keys. Scores are
// computed as [keys, queries], so that P and dS in registers are operand A of dv and dk. dq needs dS of both
// warpgroups, which exchange it through shared memory. Included by *_cuda.cu only.
//
// One step of a warpgroup, for heads of 128 (64 queries; accumulators: 64 dk, 64 dv, 32 + 32 scores, 32 dq):
//   wgmma     S = K Qᵀ | dP = V dOᵀ       | dV += P dO            | dQ = dS K   dK += dS Q (into the next step)
//   threads            | P = exp(S − lse) | dS = P (dP − δ) to shared memory | wait for the turn, add dQ
#pragma once

#include "ops/attention/sm90/scores_cuda.h"

#ifdef __CUDACC__

namespace hone::cuda::sm90 {

/// A warpgroup's part of dq: 64 of 128 queries, or half of the elements: whole boxes of 64 and, if the number of boxes
/// is odd, half of the middle one.
template <class Shape>
struct PartOfDq {
  static constexpr bool kSplitsQueries = Shape::kQueries == 128;
  static constexpr bool kSplitsBox = !kSplitsQueries && Shape::kElements / 64 % 2 == 1;

  float sums[32];
  float half_box[kSplitsBox ? 16 : 1];

  /// Computes dS · k.
  __device__ void multiply(const HopperShared<Shape>& shared, int buffer) {
    const int warpgroup = static_cast<int>(threadIdx.x) / 128;
    const auto gradients = shared.gradients(buffer);
    const auto keys = shared.k();
#pragma unroll
    for (int i = 0; i < Shape::kKeys / 16; ++i) {
      const uint64_t factor = gradients.columns(i, kSplitsQueries ? warpgroup : 0);
      Wgmma<64, true, true>::add(sums, factor, keys.columns(i, first_element() / 64), i > 0);
      if constexpr (kSplitsBox) {
        Wgmma<32, true, true>::add(half_box, factor, keys.half_box_columns(i, 1, warpgroup), i > 0);
      }
    }
  }
  __device__ void hold_all() {
    hold(sums);
    if constexpr (kSplitsBox) hold(half_box);
  }
  /// Adds this thread's accumulators to the sum in memory, or stores them if they are the first part.
  __device__ void add_to(float* partial, bool first) const {
    float* at = partial + 4 * (threadIdx.x % 128);
    add_part(at, sums, first);
    if constexpr (kSplitsBox) add_part(at + 32 * 128, half_box, first);
  }
  /// Adds the sum of the other CTAs.
  __device__ void take_from(const float* partial) {
    const float* at = partial + 4 * (threadIdx.x % 128);
    take_parts(at, sums);
    if constexpr (kSplitsBox) take_parts(at + 32 * 128, half_box);
  }
  __device__ void store(const HopperBackward& args, const AttentionTile& tile, const QueryStep& step) const {
    const int warpgroup = static_cast<int>(threadIdx.x) / 128;
    const int query = step.query + (kSplitsQueries ? 64 * warpgroup : 0);
    store_sums(args.dq, sums, args.scale, tile, query, step.head, args.num_heads, args.head_dim, first_element());
    if constexpr (kSplitsBox) {
      store_sums(args.dq, half_box, args.scale, tile, query, step.head, args.num_heads, args.head_dim,
                 64 + 32 * warpgroup);
    }
  }

 private:
  __device__ static int first_element() {
    return kSplitsQueries ? 0 : (Shape::kElements - 64) * (static_cast<int>(threadIdx.x) / 128);
  }
};

template <class Shape>
__device__ inline void multiply_by_keys(const HopperBackward& args, const HopperShared<Shape>& shared) {
  constexpr int kQueries = Shape::kQueries, kScores = Shape::kScores;
  // Whether there are enough registers for dP in addition to the scores.
  constexpr bool kScoresTogether = (Shape::kElements + Shape::kValueElements) / 2 + 2 * kScores <= 192;
  constexpr bool kDkRunsOn = kScoresTogether && kQueries == 64;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32;
  const float scale_log2 = args.scale * 1.44269504088896f;
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };
  constexpr int kStages = Shape::kStages;
  RingPosition<kStages> ring;
  RingPosition<HopperShared<Shape>::kBuffers> buffers;
  RingPosition<HopperShared<Shape>::kTurns> turns;
  RingPosition<1> keys_ring;
  for (;; keys_ring.advance()) {
    barrier_wait(shared.keys_full(), keys_ring.phase);
    const int steps = shared.item().steps;
    if (steps < 0) return;
    const int key = shared.item().tile.first + 64 * warpgroup;  // the warpgroup's first key
    float dk[Shape::kElements / 2] = {}, dv[Shape::kValueElements / 2] = {};
    for (int i = 0; i < steps; ++i, ring.advance(), buffers.advance()) {
      const int stage = ring.stage;
      barrier_wait(shared.full(stage), ring.phase);
      float s[kScores], dp[kScores];
      wgmma_fence();
      multiply_heads<Shape::kElements>(s, shared.k(), 64 * warpgroup, shared.q(stage));
      wgmma_commit();
      const auto begin_dp = [&] {
        multiply_heads<Shape::kValueElements>(dp, shared.v(), 64 * warpgroup, shared.dout(stage));
        wgmma_commit();
      };
      if constexpr (kScoresTogether) begin_dp();
      wgmma_wait<kScoresTogether ? 1 : 0>();
      hold(s);
      if (i > 0) release(shared.empty(stage == 0 ? kStages - 1 : stage - 1));

      make_probabilities(s, scale_log2, OfQueries<kScores>(shared.shifts(stage)));
      const int query = shared.step(stage).query;
      if (query < key + 64 || (args.window > 0 && query + kQueries > key + args.window)) {
        hide_unseen(s, query, key, args.window);
      }
      uint32_t factor[kScores / 2];
      pack_sums(factor, s);
      wgmma_fence();
      if constexpr (!kScoresTogether) begin_dp();
#pragma unroll
      for (int j = 0; j < kQueries / 16; ++j) add_columns(dv, factor + 4 * j, shared.dout(stage).columns(j));
      wgmma_commit();
      const OfQueries<kScores> deltas(shared.deltas(stage));
      wgmma_wait<1>();
      hold(dp);

      uint32_t gradient_factor[kScores / 2];
      make_score_gradients(gradient_factor, dp, factor, deltas);
      share(shared.gradients(buffers.stage), gradient_factor, 64 * warpgroup);
      fence_for_async_reads();
      named_sync(1, 256);
      PartOfDq<Shape> dq;
      const auto begin_dk = [&] {
#pragma unroll
        for (int j = 0; j < kQueries / 16; ++j) add_columns(dk, gradient_factor + 4 * j, shared.q(stage).columns(j));
        wgmma_commit();
      };
      wgmma_fence();
      if constexpr (!kScoresTogether) {
        begin_dk();
        wgmma_wait<0>();
      }
      dq.multiply(shared, buffers.stage);
      wgmma_commit();
      if constexpr (kScoresTogether) begin_dk();
      wgmma_wait<kScoresTogether ? 1 : 0>();
      dq.hold_all();

      const QueryStep step = shared.step(stage);
      if (step.turns > 1) {
        barrier_wait(shared.turn(turns.stage), turns.phase);
        constexpr int kPart = kQueries * Shape::kElements / 2;
        float* partial = args.partial_dq + ((step.head * args.query_blocks + step.block) * 2 + warpgroup) * kPart;
        if (step.turn == step.turns - 1) {
          dq.take_from(partial);
        } else {
          dq.add_to(partial, step.turn == 0);
        }
        __syncwarp();
        release(shared.added(turns.stage));
        turns.advance();
      }
      if (step.turn == step.turns - 1) dq.store(args, shared.item().tile, step);
      if constexpr (!kDkRunsOn) wgmma_wait<0>();
    }
    wgmma_wait<0>();
    release(shared.empty(ring.stage == 0 ? kStages - 1 : ring.stage - 1));
    hold(dk);
    hold(dv);
    const AttentionTile tile = shared.item().tile;
    const int kv_head = shared.item().kv_head;
    release(shared.keys_empty());
    store_sums(args.dk, dk, args.scale, tile, key, kv_head, args.num_kv_heads, args.head_dim);
    store_sums(args.dv, dv, 1.0f, tile, key, kv_head, args.num_kv_heads, args.v_head_dim);
  }
}

}  // namespace hone::cuda::sm90

#endif  // __CUDACC__
