// Tests that several ranks train as one rank does with the same micro-batches. Ranks are threads here.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include "all_cases.h"
#include "app/verify/replay.h"
#include "core/cpu/thread_pool.h"
#include "device_main.h"
#include "dist/exchange/bucket_parts.h"
#include "dist/transport/thread_ranks.h"
#include "optim/momentum_rule.h"
#include "optim/muon_rule.h"
#include "rank_jobs.h"
#include "test_communicators.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

void expect_ranks_equal_one(const Job& job) {
  const Outcome one = train(job, nullptr, ZeroStage::kNone);
  for (const int count : {2, 4}) {
    for (const ZeroStage stage : kStages) {
      SCOPED_TRACE(traced(count, stage));
      expect_same_training(train_by(count, job, stage), one, job);
    }
  }
}

TEST(Ranks, TrainAWholeModelAsOneDoes) { expect_ranks_equal_one({.steps = steps_of("qwen3_moe", {4, 4, 4})}); }

TEST(Ranks, TrainAdaptersOfAttentionAsOneDoes) {
  expect_ranks_equal_one({.adapter = "lora_attention_init", .steps = steps_of("qwen3_moe", {4, 4, 4})});
}

TEST(Ranks, TrainAdaptersOfExpertsAsOneDoes) {
  expect_ranks_equal_one({.adapter = "lora_experts_init", .steps = steps_of("qwen3_moe", {4, 4, 4})});
}

TEST(Ranks, MayHaveNoMicroBatchOrMoreThanOthers) {
  expect_ranks_equal_one({.steps = steps_of("qwen3_moe", {1, 3, 5, 2, 7})});
}

TEST(Ranks, AddUpBothUsesOfATiedEmbedding) {
  const Job job{.model = "qwen3_moe_hard", .steps = steps_of("qwen3_moe_hard", {4, 3})};
  expect_ranks_equal_one(job);
}

TEST(Ranks, NeedNoTokenOfAnExpert) {
  Job job{.steps = steps_of("qwen3_moe", {4, 4})};
  for (StepData& step : job.steps) {  // the last rank has two tokens: an expert has at most two, most experts none
    MicroBatch& last = step.micro_batches.back();
    LabelledDocument pair{{last.input_ids[0], last.input_ids[1]}, {last.input_ids[0], last.input_ids[1]}};
    last = pack_documents({pair});
  }
  expect_ranks_equal_one(job);
}

TEST(Ranks, ThatShardStepEveryElementAsThoseThatDoNot) {
  // Each sum over ranks is computed once for all stages. Without clipping, whose norm is summed in another order, the
  // bits are the same: of rounded masters, stochastically rounded moments, and 8-bit codes.
  const std::vector<StepData> steps = steps_of("qwen3_moe", {4, 2, 3});
  const TrainingFormats codes{.m = DType::kI8, .v = DType::kU8},
      narrow{.gradient = DType::kBF16, .master = DType::kBF16, .m = DType::kBF16, .v = DType::kBF16};
  const TrainingFormats small_m{.m = DType::kBF16};
  std::vector<Job> jobs = {
      {.max_grad_norm = 0, .steps = steps},
      {.dtype = DType::kBF16, .max_grad_norm = 0, .steps = steps},
      {.dtype = DType::kBF16, .formats = codes, .max_grad_norm = 0, .steps = steps},
      {.dtype = DType::kBF16, .formats = narrow, .max_grad_norm = 0, .steps = steps},
      {.dtype = DType::kBF16, .formats = small_m, .max_grad_norm = 0, .rule = lion_rule(), .steps = steps},
      {.adapter = "lora_experts_init", .max_grad_norm = 0, .steps = steps},
  };
  if (!on_gpu()) {  // Muon is for the CPU
    jobs.push_back({.max_grad_norm = 0, .rule = muon_rule(), .steps = steps});
    jobs.push_back(
        {.dtype = DType::kBF16, .formats = small_m, .max_grad_norm = 0, .rule = muon_rule(), .steps = steps});
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    for (const int count : {2, 3}) {
      const Outcome whole = train_by(count, jobs[i], ZeroStage::kNone);
      const Outcome sharded = train_by(count, jobs[i], ZeroStage::kState);
      EXPECT_EQ(whole.bytes, sharded.bytes) << "job " << i << ", " << count << " ranks";
    }
  }
}

TEST(Ranks, ShareMuonByWholeMatrices) {
  if (on_gpu()) GTEST_SKIP() << "Muon is for the CPU";
  // With one micro-batch per step the other ranks add zeros: the bits are those of one rank for any distribution of
  // matrices. Some buckets have more matrices than ranks, others fewer.
  const std::vector<StepData> steps = steps_of("qwen3_moe", {1, 1, 1});
  const std::vector<Job> jobs = {
      {.max_grad_norm = 0, .rule = muon_rule({.rate = MuonRate::kMatchRmsAdamw}), .steps = steps},
      {.dtype = DType::kBF16,
       .formats = {.m = DType::kBF16},
       .max_grad_norm = 0,
       .rule = muon_rule(),
       .steps = steps,
       .least_bucket_bytes = 100'000},
      {.adapter = "lora_experts_init", .max_grad_norm = 0, .rule = muon_rule(), .steps = steps},
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Outcome one = train(jobs[i], nullptr, ZeroStage::kNone);
    for (const int count : {2, 4}) {
      for (const ZeroStage stage : kStages) {
        EXPECT_EQ(train_by(count, jobs[i], stage).bytes, one.bytes) << "job " << i << ", " << traced(count, stage);
      }
    }
  }
}

TEST(Ranks, ThatShardGradientsOrValuesTakeTheSameSteps) {
  // With one micro-batch per rank, only sums over ranks are added, and values are copies in all stages. A rank without
  // a micro-batch adds zeros. With adapters, frozen values are sharded.
  const std::vector<StepData> steps = steps_of("qwen3_moe", {3, 2, 3});
  const TrainingFormats codes{.m = DType::kI8, .v = DType::kU8},
      narrow{.gradient = DType::kBF16, .master = DType::kBF16, .m = DType::kBF16, .v = DType::kBF16};
  const std::vector<Job> jobs = {
      {.max_grad_norm = 0, .steps = steps},
      {.model = "deepseek_v3", .max_grad_norm = 0, .steps = steps_of("deepseek_v3", {3, 2})},
      {.model = "qwen3_next", .max_grad_norm = 0, .steps = steps_of("qwen3_next", {3})},
      {.dtype = DType::kBF16, .formats = codes, .max_grad_norm = 0, .steps = steps},
      {.dtype = DType::kBF16, .formats = narrow, .max_grad_norm = 0, .steps = steps},
      {.adapter = "lora_attention_init", .max_grad_norm = 0, .steps = steps},
      {.adapter = "lora_experts_init", .max_grad_norm = 0, .steps = steps},
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Outcome state = train_by(3, jobs[i], ZeroStage::kState);
    for (const ZeroStage stage : {ZeroStage::kGradients, ZeroStage::kValues}) {
      EXPECT_EQ(train_by(3, jobs[i], stage).bytes, state.bytes) << "job " << i << ", " << traced(3, stage);
    }
  }
}

TEST(Ranks, CopyWeightsFromPeersAsTheyGatherThem) {
  const TrainingFormats codes{.m = DType::kI8, .v = DType::kU8};
  const std::vector<Job> jobs = {
      {.steps = steps_of("qwen3_moe", {4, 1, 5})},
      {.model = "qwen3_moe_hard", .steps = steps_of("qwen3_moe_hard", {4, 3})},
      {.dtype = DType::kBF16, .formats = codes, .steps = steps_of("qwen3_moe", {3, 2, 3}), .recompute = true},
      {.adapter = "lora_experts_init", .steps = steps_of("qwen3_moe", {3, 2})},
      {.adapter = "lora_attention_init", .steps = steps_of("qwen3_moe", {2, 2}), .base = "nf4"},
      {.steps = steps_of("qwen3_moe", {3, 3}), .offload = {.optimizer = true, .experts = true}},
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    for (const int count : {2, 3}) {
      SCOPED_TRACE("job " + std::to_string(i) + ", " + std::to_string(count) + " ranks");
      Job job = jobs[i];
      job.weight_fetch = FetchWay::kCollectives;
      job.map_values = false;
      const Outcome gathered = train_by(count, job, ZeroStage::kValues);
      job.map_values = true;
      expect_same_bits(train_by(count, job, ZeroStage::kValues), gathered);
      job.weight_fetch = FetchWay::kPeers;
      expect_same_bits(train_by(count, job, ZeroStage::kValues), gathered);
      if (on_gpu()) continue;  // what is late on a GPU is not for a test to say
      job.uneven = true;
      expect_same_bits(train_by(count, job, ZeroStage::kValues), gathered);
    }
  }
}

class CaseOnRanks : public ::testing::TestWithParam<std::string> {};

/// As stage 1 does: whole models, adapters of attention and of experts, resident and in host memory. One micro-batch a
/// step, then one a rank; the other ranks have none.
TEST_P(CaseOnRanks, TakesTheSameStepsInAllStages) {
  constexpr Offload kState{.optimizer = true}, kAll{.optimizer = true, .params = true};
  struct Placing {
    ZeroStage stage;
    Offload offload = {};
  };
  for (const char* adapter : {"", "lora_attention_init", "lora_experts_init"}) {
    if (!fs::exists(goldens() / GetParam() / adapter)) continue;
    Job job{.model = GetParam(), .adapter = adapter, .max_grad_norm = 0, .steps = steps_of(GetParam(), {1, 2})};
    for (const int count : {2, 4}) {
      std::vector<Placing> placings = {{ZeroStage::kValues}, {ZeroStage::kValues, kAll}};
      if (count == 2) placings.insert(placings.begin(), {{ZeroStage::kGradients}, {ZeroStage::kGradients, kState}});
      job.offload = {};
      job.offload_activations = false;
      job.weight_fetch = count == 2 ? FetchWay::kPeers : FetchWay::kCollectives;
      const Outcome state = train_by(count, job, ZeroStage::kState);
      for (const auto& [stage, offload] : placings) {
        job.offload = offload;
        job.offload_activations = offload.optimizer;
        SCOPED_TRACE(std::string(adapter) + ", " + traced(count, stage) + (offload.optimizer ? ", offloaded" : ""));
        const Outcome outcome = train_by(count, job, stage);
        EXPECT_EQ(outcome.bytes, state.bytes);
        for (size_t i = 0; i < state.steps.size(); ++i) {
          EXPECT_EQ(bits_of(outcome.steps[i].loss_with_aux), bits_of(state.steps[i].loss_with_aux)) << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CaseOnRanks, ::testing::ValuesIn(all_cases()),
                         [](const auto& test) { return test.param; });

TEST(Ranks, MaySumSmallBucketsTogether) {
  // Without clipping, whose norm is summed by bucket, results do not depend on the buckets.
  Job job{.max_grad_norm = 0, .steps = steps_of("qwen3_moe", {4, 2, 3})};
  const Outcome apart = train_by(2, job, ZeroStage::kState);
  for (const int64_t least : {10'000, 100'000, 1'000'000'000}) {
    job.least_bucket_bytes = least;
    EXPECT_EQ(train_by(2, job, ZeroStage::kState).bytes, apart.bytes) << least;
    EXPECT_EQ(train_by(2, job, ZeroStage::kNone).bytes, apart.bytes) << least;
  }
  job.shard_size = 2;
  for (const ZeroStage stage : kShardedStages) {
    job.least_bucket_bytes = 0;
    const Outcome groups = train_by(4, job, stage);
    for (const int64_t least : {10'000, 100'000, 1'000'000'000}) {
      job.least_bucket_bytes = least;
      EXPECT_EQ(train_by(4, job, stage).bytes, groups.bytes) << traced(4, stage, 2) << ", " << least;
    }
  }
}

TEST(Ranks, TakeNoStepWhereOneOfThemLosesNumbers) {
  Job job{.steps = steps_of("qwen3_moe", {4})};
  job.steps[0].micro_batches[3].loss_weights[0] = std::numeric_limits<float>::infinity();
  std::vector<std::pair<ZeroStage, int>> layouts;
  for (const ZeroStage stage : kStages) layouts.emplace_back(stage, 0);
  for (const ZeroStage stage : kShardedStages) layouts.emplace_back(stage, 2);
  for (const auto& [stage, shard_size] : layouts) {
    job.shard_size = shard_size;
    const Outcome outcome = train_by(4, job, stage);
    EXPECT_TRUE(outcome.steps[0].nonfinite);
    EXPECT_FALSE(outcome.steps[0].first_nonfinite.empty());
    const HostTensors initial = initial_values(job);
    for (const auto& [name, tensor] : outcome.values) EXPECT_EQ(tensor.values, initial.at(name).values) << name;
  }
}

TEST(Ranks, WaitForEverySumAndValueWhereItIsRead) {
  if (on_gpu()) GTEST_SKIP() << "collectives that are late are of host memory";
  const TrainingFormats narrow{.gradient = DType::kBF16, .master = DType::kBF16, .m = DType::kBF16, .v = DType::kBF16};
  const std::vector<Job> jobs = {
      {.steps = steps_of("qwen3_moe", {4, 1, 5})},  // a rank without a micro-batch reads nothing in a step
      {.model = "qwen3_moe_hard", .steps = steps_of("qwen3_moe_hard", {4, 3})},
      {.dtype = DType::kBF16, .formats = narrow, .steps = steps_of("qwen3_moe", {2, 2})},
      {.adapter = "lora_experts_init", .steps = steps_of("qwen3_moe", {3, 2})},
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    for (const ZeroStage stage : kStages) {
      SCOPED_TRACE("job " + std::to_string(i) + ", " + traced(2, stage));
      const Outcome prompt = train_by(2, jobs[i], stage);
      for (const FetchWay way : {FetchWay::kCollectives, FetchWay::kPeers}) {
        if (way == FetchWay::kPeers && stage != ZeroStage::kValues) continue;
        Job job = jobs[i];
        job.weight_fetch = way;
        std::vector<Outcome> late(2);
        run_ranks(2, [&](Communicator& ranks) {
          LazyCommunicator lazy(ranks);
          late[static_cast<size_t>(ranks.rank())] = train(job, &lazy, stage);
        });
        for (const Outcome& outcome : late) expect_same_bits(outcome, prompt);
      }
    }
    for (const ZeroStage stage : kShardedStages) {
      SCOPED_TRACE("job " + std::to_string(i) + ", " + traced(4, stage, 2));
      Job grouped = jobs[i];
      grouped.shard_size = 2;
      const Outcome prompt = train_by(4, grouped, stage);
      std::vector<Outcome> late(4);
      run_ranks(4, [&](Communicator& ranks) {
        LazyCommunicator lazy(ranks);
        late[static_cast<size_t>(ranks.rank())] = train(grouped, &lazy, stage);
      });
      for (const Outcome& outcome : late) expect_same_bits(outcome, prompt);
    }
  }
}

bool all_bits_set(const Tensor& tensor) {
  return std::all_of(tensor.data, tensor.data + tensor.bytes(), [](std::byte b) { return b == std::byte{0xFF}; });
}

TEST(Ranks, ValuesOnTheirWayAreAwaitedByTheHostThatReadsThem) {
  if (on_gpu()) GTEST_SKIP() << "collectives that are late are of host memory";
  const StepData data = steps_of("qwen3_moe", {2}).front();
  const int64_t most = std::max(data.micro_batches[0].tokens(), data.micro_batches[1].tokens());
  run_ranks(2, [&](Communicator& ranks) {
    LazyCommunicator lazy(ranks);
    ThreadPool pool(1);
    Stream stream(Device{}, pool);
    Replay replay(goldens() / "qwen3_moe/model", stream, {most, 1, most, most},
                  {.ranks = &lazy, .share = {.stage = ZeroStage::kState}});
    const auto engine = replay.make_engine(0.01);
    engine->accumulate(data, 0);
    engine->update({1e-3, 0});
    stream.synchronize();
    EXPECT_FALSE(replay.store().values_arrived());
    const int other = 1 - ranks.rank();
    for (const Bucket& bucket : replay.store().buckets()) {  // what a reader that does not wait would read
      const Part part = parts_of(bucket)[static_cast<size_t>(other)];
      EXPECT_TRUE(all_bits_set({element_at(bucket.values, part.offset), bucket.values.dtype, {part.count}, {}}));
    }
    for (const Parameter* p : replay.store().trainable()) {
      const auto values = std::span(p->value().whole().as<float>(), static_cast<size_t>(p->shape().numel()));
      EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) << p->name();
    }
    EXPECT_TRUE(replay.store().values_arrived());
  });
}

TEST(Ranks, NoValuesAreOnTheirWayToAnEngineThatHasEnded) {
  const StepData data = steps_of("qwen3_moe", {2}).front();
  const int64_t most = std::max(data.micro_batches[0].tokens(), data.micro_batches[1].tokens());
  for (const char* const adapter : {"", "lora_attention_init"}) {
    run_ranks(2, [&](Communicator& ranks) {
      LazyCommunicator lazy(ranks);
      ThreadPool pool(1);
      Stream stream(Device{}, pool);
      const fs::path golden = goldens() / "qwen3_moe";
      Replay replay(golden / "model", stream, {most, 1, most, most},
                    {.adapter = *adapter ? golden / adapter : fs::path(),
                     .ranks = &lazy,
                     .share = {.stage = ZeroStage::kValues},
                     .weight_fetch = FetchWay::kPeers});
      auto engine = replay.make_engine(0.01);
      engine->accumulate(data, 0);
      engine->update({1e-3, 0});
      Arena scratch({}, "scratch");
      scratch.reserve(1);
      const Context context(stream, scratch);
      {  // as a rank that has no answer to generate
        PassCompanions& companions = engine->companions();
        const PassCompanions::Pass pass(companions, {.work = PassWork::kIdle});
        for (const Parameter& p : replay.store().all()) {
          companions.acquired(context, *p.group(), {});
          companions.released(context, *p.group(), {});
        }
      }
      stream.synchronize();
      EXPECT_FALSE(replay.store().values_arrived());
      engine.reset();
      EXPECT_TRUE(replay.store().values_arrived());
    });
  }
}

class RanksFiles : public ::testing::Test {
 protected:
  RanksFiles()
      : folder_(fs::path(::testing::TempDir()) /
                (std::string("hone_ranks_") + ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~RanksFiles() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(RanksFiles, GoOnInAnyNumberFromWhatOthersSaved) {
  const Job whole{.steps = steps_of("qwen3_moe", {4, 4, 4, 4})};
  const Outcome one = train(whole, nullptr, ZeroStage::kNone);
  const auto expect_goes_on = [&](const Outcome& outcome) { expect_same_end(outcome, one, whole); };
  Job begin = whole, rest = whole;
  begin.steps.resize(2);
  begin.save_to = rest.resume_from = folder_;
  rest.first = 2;
  for (const ZeroStage stage : kStages) {
    SCOPED_TRACE(traced(4, stage));
    const Outcome four = train_by(4, whole, stage);
    train_by(4, begin, stage);
    const Outcome again = train_by(4, rest, stage);
    EXPECT_EQ(again.bytes, four.bytes) << "bit for bit on the same ranks";
    expect_goes_on(again);
    expect_goes_on(train(rest, nullptr, ZeroStage::kNone));
    for (const ZeroStage other : kStages) expect_goes_on(train_by(2, rest, other));
  }
  train(begin, nullptr, ZeroStage::kNone);  // the reverse direction
  for (const ZeroStage stage : kStages) expect_goes_on(train_by(4, rest, stage));
}

TEST_F(RanksFiles, GoOnInOtherGroups) {
  const Job alone{.steps = steps_of("qwen3_moe", {4, 4, 4})};
  const Outcome one = train(alone, nullptr, ZeroStage::kNone);
  Job whole = alone;
  whole.shard_size = 2;
  Job begin = whole, rest = whole;
  begin.steps.resize(1);
  begin.save_to = rest.resume_from = folder_;
  rest.first = 1;
  for (const ZeroStage stage : kShardedStages) {
    SCOPED_TRACE(traced(4, stage, 2));
    train_by(4, begin, stage);
    EXPECT_EQ(train_by(4, rest, stage).bytes, train_by(4, whole, stage).bytes) << "bit for bit in the same groups";
    for (const auto& [count, shard_size] : {std::pair(4, 0), std::pair(2, 1), std::pair(2, 2), std::pair(4, 4)}) {
      Job other = rest;
      other.shard_size = shard_size;
      expect_same_end(train_by(count, other, stage), one, alone);
    }
  }
}

TEST_F(RanksFiles, AreTheSameWhoeverKeptThem) {
  for (const TrainingFormats formats : {TrainingFormats{}, TrainingFormats{.m = DType::kI8, .v = DType::kU8}}) {
    Job job{.dtype = DType::kBF16, .formats = formats, .max_grad_norm = 0, .steps = steps_of("qwen3_moe", {3, 3})};
    const auto bytes_of_state = [&](ZeroStage stage, const std::string& name) {
      job.save_to = folder_ / name;
      fs::create_directories(job.save_to);
      train_by(3, job, stage);
      std::ifstream file(job.save_to / "training_state.safetensors", std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    const std::string whole = bytes_of_state(ZeroStage::kNone, "whole");
    EXPECT_GT(whole.size(), 10000u);
    for (const ZeroStage stage : kShardedStages) {
      EXPECT_TRUE(whole == bytes_of_state(stage, "sharded")) << traced(3, stage);
    }
    // 2 ranks continue the state of 3 ranks in any stage.
    Job rest = job;
    rest.save_to.clear();
    rest.resume_from = folder_ / "sharded";
    rest.first = 1;
    const Outcome whole_again = train_by(2, rest, ZeroStage::kNone);
    for (const ZeroStage stage : {ZeroStage::kState, ZeroStage::kGradients, ZeroStage::kValues}) {
      EXPECT_EQ(train_by(2, rest, stage).bytes, whole_again.bytes) << traced(2, stage);
    }
  }
}

TEST(Ranks, OfDifferentGpusTakeTheStepsOfEqualOnes) {
  if (!on_gpu()) GTEST_SKIP() << "tiers of GPU kernels";
  Job job{.dtype = DType::kBF16, .steps = steps_of("qwen3_moe", {4, 4, 4})};
  for (const ZeroStage stage : kStages) {
    SCOPED_TRACE(traced(2, stage));
    job.tiers = {};
    const Outcome equal = train_by(2, job, stage);
    for (const auto& tiers : {std::vector{KernelTier::kSm80, KernelTier::kGeneral},
                              std::vector{KernelTier::kSm100, KernelTier::kSm80}}) {  // sm100: what the GPU has
      job.tiers = tiers;
      const Outcome mixed = train_by(2, job, stage);  // all ranks have the same values and the same results
      for (size_t rank = 0; rank < tiers.size(); ++rank) {
        const bool general = mixed.kernels[rank].find("experts: general") != std::string::npos;
        EXPECT_EQ(general, tiers[rank] == KernelTier::kGeneral) << mixed.kernels[rank];
      }
      // Tiers round at different places: activations and probabilities to bfloat16, half an ulp of which is 2⁻⁹ of the
      // value. A step's loss and norm are means of many such errors, of either sign.
      Job alone = job;
      alone.tiers = {};
      expect_same_numbers(mixed, equal, alone, 0.002, 0.02);
      for (size_t i = 0; i < equal.steps.size(); ++i) {
        EXPECT_EQ(mixed.steps[i].loss.tokens, equal.steps[i].loss.tokens) << i;
      }
    }
  }
}

TEST(Ranks, KeepTheirShareOfTheStateAlone) {
  const ParameterBytes one = bytes_of(RankShare{});
  ParameterBytes all;
  for (int rank = 0; rank < 4; ++rank) {
    const ParameterBytes share = bytes_of({rank, 4, ZeroStage::kState});
    all += share;
    // Buckets are padded to 4 × 256 elements, and tensors of a rank to 256 bytes.
    EXPECT_LT(share.moments, one.moments / 4 + (one.moments / 50)) << "a quarter each";
    EXPECT_GE(share.weights, one.weights);
  }
  EXPECT_GE(all.master, one.master * 9 / 10);
  EXPECT_LE(all.master, one.master + one.master / 10);
}

TEST(Ranks, KeepTheirShareOfGradientsAndWeightsAndMemoryForFourHalves) {
  constexpr int64_t kLayers = 64;
  const auto bytes = [&](ZeroStage stage) {
    return bytes_of({.rank = 1, .ranks = 4, .stage = stage, .least_sharded_elements = 0}, kLayers);
  };
  const ParameterBytes state = bytes(ZeroStage::kState), gradients = bytes(ZeroStage::kGradients),
                       values = bytes(ZeroStage::kValues);
  // Paddings differ, since stages have different buckets.
  const auto about = [](int64_t value, int64_t expected, int64_t whole) {
    return std::abs(value - expected) < whole / 20;
  };
  EXPECT_TRUE(about(gradients.weights, state.weights, state.weights));
  EXPECT_TRUE(about(values.moments, state.moments, state.moments));
  // A quarter of the layers, which are most of the model, and slots for the halves of two layers.
  const auto share = [&](int64_t whole) { return whole / 4 + 2 * whole / kLayers; };
  EXPECT_TRUE(about(gradients.gradients, share(state.gradients), state.gradients)) << gradients.gradients;
  EXPECT_TRUE(about(values.weights, share(state.weights), state.weights)) << values.weights;
}

}  // namespace
}  // namespace hone
