// Profiles with round numbers for tests.
#pragma once

#include <vector>

#include "core/stream/profiler.h"

namespace hone {

/// Two steps of 10 ms, each with 3 ms of attention, 4 ms of experts, 1 ms of optimizer. One more op precedes the first
/// step.
inline Profile two_steps() {
  Profile profile;
  std::vector<ProfileSpan>& spans = profile.spans;
  spans = {{ProfileKind::kOp, "linear", "forward", 0, 0.0, 0.5, 0, OpGroup::kDense}};
  for (int64_t i = 0; i < 2; ++i) {
    const double begin = 1.0 + 0.01 * static_cast<double>(i);
    spans.push_back({ProfileKind::kStep, "step", "", i, begin, begin + 0.010});
    spans.push_back({ProfileKind::kBlock, "block", "forward", 0, begin, begin + 0.008});
    spans.push_back(
        {ProfileKind::kOp, "attention", "forward", 0, begin + 0.001, begin + 0.004, 5e6, OpGroup::kAttention});
    spans.push_back(
        {ProfileKind::kOp, "moe_gate_up", "backward", 0, begin + 0.004, begin + 0.007, 0, OpGroup::kExperts});
    spans.push_back({ProfileKind::kOp, "router", "backward", 0, begin + 0.007, begin + 0.008, 0, OpGroup::kExperts});
    spans.push_back({ProfileKind::kOp, "adamw", "", 0, begin + 0.008, begin + 0.009, 0, OpGroup::kOptimizer});
  }
  return profile;
}

/// Thread 0 is busy during the whole of the first step's attention, thread 1 during a third of it. Thread 0 also has a
/// loop nested in its task.
inline Profile two_steps_on_two_threads() {
  Profile profile = two_steps();
  profile.threads = 2;
  const double begin = profile.spans[3].begin;
  profile.loops = {{0, 1, 3, begin, begin + 0.003},
                   {0, 4, 3, begin + 0.001, begin + 0.002},
                   {1, 2, 3, begin, begin + 0.001},
                   {1, 9, -1, begin + 0.1, begin + 0.2}};
  return profile;
}

/// A step of 10 ms on a GPU: attention, which waits from 2 to 3 ms, then the optimizer. Concurrent collectives: a
/// reduce-scatter from 0.5 to 3 ms, and two all-gathers from 7 ms on, the last of which ends after the step.
inline Profile step_with_collectives() {
  Profile profile;
  profile.spans = {
      {ProfileKind::kStep, "step", "", 0, 0.0, 0.010},
      {ProfileKind::kCollective, "reduce-scatter", "layer 1", 0, 0.0005, 0.003, 8e6, OpGroup::kCollectives},
      {ProfileKind::kOp, "attention", "forward", 0, 0.001, 0.005, 0, OpGroup::kAttention},
      {ProfileKind::kWait, "wait for", "layer 1", 0, 0.002, 0.003},
      {ProfileKind::kOp, "adamw", "", 0, 0.005, 0.009, 0, OpGroup::kOptimizer},
      {ProfileKind::kCollective, "all-gather", "embedding", 0, 0.007, 0.0085, 2e6, OpGroup::kCollectives},
      {ProfileKind::kCollective, "all-gather", "layer 1", 0, 0.0085, 0.0115, 2e6, OpGroup::kCollectives}};
  return profile;
}

}  // namespace hone
