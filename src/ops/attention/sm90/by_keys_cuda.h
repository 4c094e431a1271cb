// The main loop of attention's backward on Hopper in which each warpgroup has half of a tile's 128 keys. Scores are
// computed as [keys, queries], so that P and dS in registers are operand A of dv and dk. dq needs dS of both
// warpgroups, which exchange it through shared memory. Included by *_cuda.cu only.
//
// One step of a warpgroup, for heads of 128 (64 queries; accumulators: 64 dk, 64 dv, 32 + 32 scores, 32 dq):
//   wgmma     S = K Qᵀ | dP = V dOᵀ       | dV += P dO            | dQ = dS K   dK += dS Q (into the next step)
//   threads            | P = exp(S − lse) | dS = P (dP − δ) to shared memory | wait for the turn, add dQ
//
// Heads of 192 and 128 have 96 + 64 accumulators of dk and dv. There, dP waits for P, dk reads dS from shared memory,
// and dq has two parts, one after another: with its 48 accumulators at once, ptxas 13.0 serialises every wgmma of the
// kernel (C7512), which -Xptxas -v reports.
//
// Tried and lost, heads of 128, one H200, 2026-11-29: dk before the warpgroups exchange dS, so that tensor cores have
// it while they wait: 478 -> 450 at 1 x 16384, 439 -> 420 at 4 x 4096, since the addition of dq then stands alone. The
// next step's scores before that addition: ptxas serialises wgmma (C7514). The next step's scores after dV, with dk
// from shared memory, for which registers suffice: 485 -> 467 and 457 -> 444
// (bench/results/h200-attention-pairs-2026-11-30.txt).
#pragma once

#include "ops/attention/sm90/scores_cuda.h"

#ifdef __CUDACC__

namespace hone::cuda::sm90 {

/// A warpgroup's part of dq: 64 of 128 queries, or half of the elements: whole boxes of 64 and, if the number of boxes
/// is odd, half of the middle one, which is computed after the boxes have been added, for want of registers.
template <class Shape>
struct PartOfDq {
  static constexpr bool kSplitsQueries = Shape::kQueries == 128;
  static constexpr bool kSplitsBox = !kSplitsQueries && Shape::kElements / 64 % 2 == 1;

  const HopperBackward& args;
  const HopperShared<Shape>& shared;
  int stage, buffer;
  int warpgroup;

  /// Computes dS · k.
  __device__ void multiply_boxes(float (&dq)[32]) const {
    const auto gradients = shared.gradients(buffer);
#pragma unroll
    for (int i = 0; i < Shape::kKeys / 16; ++i) {
      Wgmma<64, true, true>::add(dq, gradients.columns(i, kSplitsQueries ? warpgroup : 0),
                                 shared.k().columns(i, first_element() / 64), i > 0);
    }
    wgmma_commit();
  }
  __device__ void multiply_half_box(float (&dq)[16]) const {
#pragma unroll
    for (int i = 0; i < Shape::kKeys / 16; ++i) {
      Wgmma<32, true, true>::add(dq, shared.gradients(buffer).columns(i, 0),
                                 shared.k().half_box_columns(i, 1, warpgroup), i > 0);
    }
    wgmma_commit();
  }
  __device__ void finish_boxes(float (&dq)[32]) const { finish(dq, 0, first_element()); }
  __device__ void finish_half_box(float (&dq)[16]) const { finish(dq, 32 * 128, 64 + 32 * warpgroup); }

 private:
  /// Adds accumulators to the sum in memory (the first part: stores them), or adds the sum to them and writes dq.
  template <int kSums>
  __device__ void finish(float (&dq)[kSums], int before, int element) const {
    const QueryStep& step = shared.step(stage);
    const bool last = step.turn == step.turns - 1;
    if (step.turns > 1) {
      constexpr int kPart = Shape::kQueries * Shape::kElements / 2;
      float* at = args.partial_dq + ((step.head * args.query_blocks + step.block) * 2 + warpgroup) * kPart + before +
                  4 * (threadIdx.x % 128);
      if (last) {
        take_parts(at, dq);
      } else {
        add_part(at, dq, step.turn == 0);
      }
    }
    if (last) {
      store_sums(args.dq, dq, args.scale, shared.item().tile, step.query + (kSplitsQueries ? 64 * warpgroup : 0),
                 step.head, args.num_heads, args.head_dim, element);
    }
  }
  __device__ int first_element() const { return kSplitsQueries ? 0 : (Shape::kElements - 64) * warpgroup; }
};

template <class Shape>
__device__ inline void multiply_by_keys(const HopperBackward& args, const HopperShared<Shape>& shared) {
  constexpr int kQueries = Shape::kQueries, kScores = Shape::kScores;
  // Whether there are enough registers for dP in addition to the scores.
  constexpr bool kScoresTogether = (Shape::kElements + Shape::kValueElements) / 2 + 2 * kScores <= 192;
  // Otherwise dk reads dS from shared memory, as dq does.
  constexpr bool kDkRunsOn = kQueries == 64;
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
      const auto gradients = shared.gradients(buffers.stage);
      share(gradients, gradient_factor, 64 * warpgroup);
      fence_for_async_reads();
      named_sync(1, 256);
      const PartOfDq<Shape> part{args, shared, stage, buffers.stage, warpgroup};
      float dq[32];
      wgmma_fence();
      part.multiply_boxes(dq);
#pragma unroll
      for (int j = 0; j < kQueries / 16; ++j) {
        if constexpr (kScoresTogether) {
          add_columns(dk, gradient_factor + 4 * j, shared.q(stage).columns(j));
        } else {
          Wgmma<Shape::kElements, false, true>::add(dk, gradients.rows(64 * warpgroup, j), shared.q(stage).columns(j),
                                                    true);
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
      hold(dq);

      const bool takes_turns = shared.step(stage).turns > 1;
      if (takes_turns) barrier_wait(shared.turn(turns.stage), turns.phase);
      part.finish_boxes(dq);
      if constexpr (PartOfDq<Shape>::kSplitsBox) {
        float half_box[16];
        wgmma_fence();
        part.multiply_half_box(half_box);
        wgmma_wait<0>();
        hold(half_box);
        part.finish_half_box(half_box);
      }
      if (takes_turns) {
        __syncwarp();
        release(shared.added(turns.stage));
        turns.advance();
      }
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
