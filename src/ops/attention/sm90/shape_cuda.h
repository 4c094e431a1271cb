// Shapes and shared memory of attention's backward kernel on Hopper for one CTA a tile. Included by *_cuda.cu only.
#pragma once

#include "ops/attention/sm90/attention_cuda.h"

#ifdef __CUDACC__

namespace hone::cuda::sm90 {

/// Heads of up to kDim elements, values of up to kValueDim.
template <int kDim, int kValueDim>
struct HopperShape {
  static constexpr int kElements = kDim, kValueElements = kValueDim;
  static constexpr int kKeys = kAttentionRows;
  /// Queries per step, limited by registers.
  static constexpr int kQueries = hopper_sizes(kDim, kValueDim)->queries;
  static constexpr int kStages = kDim <= 128 ? 3 : 2;
  /// Accumulators per thread for the scores of a step.
  static constexpr int kScores = kQueries / 2;
};

/// Record of a tile and key-value head, stored next to K in shared memory to save registers of the MMA warps.
struct HopperItem {
  AttentionTile tile;
  int kv_head;
  int steps;  ///< -1: no items left
};

template <class Shape>
struct HopperShared : HopperMemory {
  static constexpr int kStages = Shape::kStages, kQueries = Shape::kQueries;
  using Steps = QuerySteps<kQueries, Shape::kKeys>;
  using Keys = HopperOperand<Shape::kElements, Shape::kKeys>;
  using Values = HopperOperand<Shape::kValueElements, Shape::kKeys>;
  using Queries = HopperOperand<Shape::kElements, kQueries>;
  using Douts = HopperOperand<Shape::kValueElements, kQueries>;
  /// dS, MN-major: for each 64 queries a line per key. Double buffering: one is read while the next is written.
  using Gradients = HopperOperand<kQueries, Shape::kKeys>;
  static constexpr int kBuffers = 2;
  static constexpr int kStatsBytes = 2 * kQueries * static_cast<int>(sizeof(float));
  static constexpr int kItemBytes = Keys::kBytes + Values::kBytes, kStageBytes = Queries::kBytes + Douts::kBytes;
  static constexpr int kTurns = 2, kBarriers = 2 * kStages + 2 + 3 * kTurns;
  static constexpr int kGradientsBegin = kItemBytes, kStagesBegin = kGradientsBegin + kBuffers * Gradients::kBytes,
                       kStatsBegin = kStagesBegin + kStages * kStageBytes,
                       kBarriersBegin = kStatsBegin + kStages * kStatsBytes,
                       kItemBegin = kBarriersBegin + 8 * kBarriers,
                       kStepsBegin = kItemBegin + static_cast<int>(sizeof(HopperItem));
  static constexpr size_t kBytes = 1024 + kStepsBegin + kStages * sizeof(QueryStep);
  static_assert(kBytes <= 227 * 1024);

  using HopperMemory::HopperMemory;

  __device__ Keys k() const { return {begin}; }
  __device__ Values v() const { return {begin + Keys::kBytes}; }
  __device__ Gradients gradients(int buffer) const { return {begin + kGradientsBegin + buffer * Gradients::kBytes}; }
  __device__ Queries q(int stage) const { return {begin + kStagesBegin + stage * kStageBytes}; }
  __device__ Douts dout(int stage) const { return {q(stage).address + Queries::kBytes}; }
  __device__ uint32_t stats_address(int stage) const { return begin + kStatsBegin + stage * kStatsBytes; }
  __device__ const float* shifts(int stage) const {
    return reinterpret_cast<const float*>(memory + kStatsBegin + stage * kStatsBytes);
  }
  __device__ const float* deltas(int stage) const { return shifts(stage) + kQueries; }
  __device__ HopperItem& item() const { return *reinterpret_cast<HopperItem*>(memory + kItemBegin); }
  __device__ QueryStep& step(int stage) const { return reinterpret_cast<QueryStep*>(memory + kStepsBegin)[stage]; }

  __device__ uint32_t barrier(int i) const { return begin + kBarriersBegin + 8 * i; }
  __device__ uint32_t full(int stage) const { return barrier(stage); }
  __device__ uint32_t empty(int stage) const { return barrier(kStages + stage); }
  __device__ uint32_t keys_full() const { return barrier(2 * kStages); }
  __device__ uint32_t keys_empty() const { return barrier(2 * kStages + 1); }
  /// A ring of kTurns barriers for the order of dq: it is this CTA's turn to add; it has added; the counter is updated.
  __device__ uint32_t turn(int i) const { return barrier(2 * kStages + 2 + i); }
  __device__ uint32_t added(int i) const { return barrier(2 * kStages + 2 + kTurns + i); }
  __device__ uint32_t shown(int i) const { return barrier(2 * kStages + 2 + 2 * kTurns + i); }

  /// Called by one thread; __syncthreads must follow.
  __device__ void init_barriers() const {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(full(stage), 1);
      barrier_init(empty(stage), kMultiplyingWarps);
    }
    barrier_init(keys_full(), 1);
    barrier_init(keys_empty(), kMultiplyingWarps + 2);  // and the two threads for the order of dq
    for (int i = 0; i < kTurns; ++i) {
      barrier_init(turn(i), 1);
      barrier_init(added(i), kMultiplyingWarps);
      barrier_init(shown(i), 1);
    }
    barrier_init_done();
  }
};

}  // namespace hone::cuda::sm90

#endif  // __CUDACC__
