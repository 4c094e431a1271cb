// Tests that ranks in groups that are replicas of each other train as one rank does.
#include <gtest/gtest.h>

#include <utility>

#include "device_main.h"
#include "rank_jobs.h"

namespace hone {
namespace {

TEST(RanksInGroups, TrainAsOneRankDoes) {
  // 2 groups of 2 ranks, 3 of 1 (replicas alone), and 2 of 1 whose last ranks have no micro-batch in some passes.
  const std::vector<std::pair<int, int>> layouts = {{4, 2}, {3, 1}, {2, 1}};
  const std::vector<Job> jobs = {
      {.steps = steps_of("qwen3_moe", {4, 1, 7})},  // several micro-batches a rank, and ranks without one
      {.model = "qwen3_moe_hard", .steps = steps_of("qwen3_moe_hard", {4, 3})},  // a tied embedding
      {.adapter = "lora_attention_init", .steps = steps_of("qwen3_moe", {4, 5})},
      {.adapter = "lora_experts_init", .steps = steps_of("qwen3_moe", {4, 5})},
  };
  for (const Job& job : jobs) {
    const Outcome one = train(job, nullptr, ZeroStage::kNone);
    for (const auto& [count, shard_size] : layouts) {
      for (const ZeroStage stage : kShardedStages) {
        SCOPED_TRACE(job.model + " " + job.adapter + ", " + traced(count, stage, shard_size));
        Job grouped = job;
        grouped.shard_size = shard_size;
        expect_same_training(train_by(count, grouped, stage), one, job);
      }
    }
  }
}

TEST(RanksInGroups, TakeTheSameStepsInEveryStage) {
  // With one micro-batch per rank, each sum is over a group and then over groups, in all stages. Without clipping,
  // whose norm is summed in another order, the bits are the same; so are those of a second run.
  const std::vector<StepData> steps = steps_of("qwen3_moe", {4, 3, 4});
  const TrainingFormats codes{.m = DType::kI8, .v = DType::kU8},
      narrow{.gradient = DType::kBF16, .master = DType::kBF16, .m = DType::kBF16, .v = DType::kBF16};
  const std::vector<Job> jobs = {
      {.max_grad_norm = 0, .steps = steps, .shard_size = 2},
      {.model = "deepseek_v3", .max_grad_norm = 0, .steps = steps_of("deepseek_v3", {4, 2}), .shard_size = 2},
      {.dtype = DType::kBF16, .formats = codes, .max_grad_norm = 0, .steps = steps, .shard_size = 2},
      {.dtype = DType::kBF16, .formats = narrow, .max_grad_norm = 0, .steps = steps, .shard_size = 2},
      {.adapter = "lora_attention_init", .max_grad_norm = 0, .steps = steps, .shard_size = 2},
      {.adapter = "lora_experts_init", .max_grad_norm = 0, .steps = steps, .shard_size = 2},
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    SCOPED_TRACE("job " + std::to_string(i));
    const Outcome state = train_by(4, jobs[i], ZeroStage::kState);
    for (const ZeroStage stage : kShardedStages) {
      EXPECT_EQ(train_by(4, jobs[i], stage).bytes, state.bytes) << traced(4, stage, 2);
    }
  }
}

TEST(RanksInGroups, CopyWeightsFromPeersAsTheyGatherThem) {
  const std::vector<Job> jobs = {
      {.steps = steps_of("qwen3_moe", {4, 1, 5}), .shard_size = 2},
      {.adapter = "lora_experts_init", .steps = steps_of("qwen3_moe", {3, 2}), .shard_size = 2},
  };
  for (Job job : jobs) {
    SCOPED_TRACE(job.adapter);
    job.weight_fetch = FetchWay::kCollectives;
    const Outcome gathered = train_by(4, job, ZeroStage::kValues);
    job.weight_fetch = FetchWay::kPeers;
    job.uneven = !on_gpu();
    expect_same_bits(train_by(4, job, ZeroStage::kValues), gathered);
  }
}

TEST(RanksInGroups, OfAllRanksOrOfOneAreNoGroups) {
  Job job{.steps = steps_of("qwen3_moe", {2, 3})};
  const Outcome apart = train_by(2, job, ZeroStage::kNone), together = train_by(2, job, ZeroStage::kValues);
  job.shard_size = 1;
  EXPECT_EQ(train_by(2, job, ZeroStage::kValues).bytes, apart.bytes);
  job.shard_size = 2;
  EXPECT_EQ(train_by(2, job, ZeroStage::kValues).bytes, together.bytes);
}

TEST(RanksInGroups, KeepTheShareOfAGroup) {
  const auto bytes = [&](int ranks, int shard_size) {
    return bytes_of({.rank = ranks - 1,
                     .ranks = ranks,
                     .stage = ZeroStage::kValues,
                     .shard_size = shard_size,
                     .least_sharded_elements = 0});
  };
  const ParameterBytes group = bytes(2, 0), replicas = bytes(8, 2);
  EXPECT_EQ(replicas.total(), group.total()) << "the memory of a rank does not depend on the number of groups";
}

}  // namespace
}  // namespace hone
