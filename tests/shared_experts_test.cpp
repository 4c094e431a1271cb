// Tests of experts on the CPU beside the device, with several ranks of a host: they train as one rank does, and what is
// frozen of the experts is in memory that the ranks share (params/shared_values.h). The ranks are threads; without a
// GPU each has two CPU streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>

#include "app/verify/replay.h"
#include "app/verify/verify.h"
#include "core/cpu/thread_pool.h"
#include "core/text/json.h"
#include "device_main.h"
#include "dist/exchange/host_sharing.h"
#include "dist/transport/elsewhere_testing.h"
#include "dist/transport/thread_ranks.h"
#include "dist/transport/transport.h"
#include "params/frozen_weights.h"
#include "params/random_weights.h"
#include "rank_jobs.h"
#include "session/loaded_model.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

Outcome alone(const Job& job) { return train(job, nullptr, ZeroStage::kNone); }

Outcome shared_by(int ranks, Job job, ZeroStage stage = ZeroStage::kNone) {
  job.host_expert_layers = kAllLayers;
  return train_by(ranks, job, stage);
}

TEST(SharedExperts, TrainAsOneRank) {
  for (const char* model : {"qwen3_moe", "deepseek_v3", "gpt_oss"}) {
    for (const char* adapter : {"", "lora_attention_init", "lora_experts_init"}) {
      ASSERT_TRUE(fs::exists(goldens() / model / adapter)) << model << " " << adapter;
      const Job job{.model = model, .adapter = adapter, .steps = steps_of(model, {4, 4, 8})};
      const Outcome one = alone(job);
      for (const int ranks : {2, 4}) {
        SCOPED_TRACE(std::string(model) + " " + adapter + ", " + std::to_string(ranks) + " ranks");
        expect_same_training(shared_by(ranks, job), one, job);
      }
    }
  }
}

TEST(SharedExperts, GoWithEveryStageOfTheRest) {
  for (const char* adapter : {"", "lora_experts_init"}) {
    const Job job{.adapter = adapter, .steps = steps_of("qwen3_moe", {4, 4})};
    const Outcome one = alone(job);
    for (const ZeroStage stage : kShardedStages) {
      SCOPED_TRACE(std::string(adapter) + ", " + traced(4, stage));
      expect_same_training(shared_by(4, job, stage), one, job);
      Job in_groups = job;
      in_groups.shard_size = 2;
      in_groups.host_ranks = 2;  // and on two hosts
      expect_same_training(shared_by(4, in_groups, stage), one, job);
    }
  }
}

/// Four layers: one on the CPU, two streamed, one on the device.
TEST(SharedExperts, OfSomeLayersGoWithEveryStageOfTheRest) {
  for (const char* adapter : {"", "lora_experts_init"}) {
    Job job{.model = "qwen3_next", .adapter = adapter, .steps = steps_of("qwen3_next", {4, 4})};
    const Outcome one = alone(job);
    job.host_expert_layers = 1;
    for (const ZeroStage stage : {ZeroStage::kNone, ZeroStage::kState, ZeroStage::kGradients, ZeroStage::kValues}) {
      SCOPED_TRACE(std::string(adapter) + ", " + traced(2, stage));
      job.offload = {};
      const Outcome resident = train_by(2, job, stage);
      expect_same_training(resident, one, job);
      if (*adapter == 0 && (stage == ZeroStage::kState || stage == ZeroStage::kGradients)) continue;
      job.offload = {.experts = true, .expert_layers = 2};
      expect_same_bits(train_by(2, job, stage), resident);
    }
  }
}

TEST(SharedExperts, GiveTheSameBitsAgain) {
  const TrainingFormats narrow{.gradient = DType::kBF16, .master = DType::kBF16, .m = DType::kBF16, .v = DType::kBF16};
  for (const Job& job : {Job{.steps = steps_of("qwen3_moe", {4, 3}), .uneven = true},
                         Job{.dtype = DType::kBF16, .formats = narrow, .steps = steps_of("qwen3_moe", {4, 3})},
                         Job{.adapter = "lora_experts_init", .steps = steps_of("qwen3_moe", {4, 3})}}) {
    for (const ZeroStage stage : {ZeroStage::kNone, ZeroStage::kState, ZeroStage::kValues}) {
      expect_same_bits(shared_by(2, job, stage), shared_by(2, job, stage));
    }
  }
}

TEST(SharedExperts, MayHaveRanksWithoutAMicroBatch) {
  for (const char* adapter : {"", "lora_attention_init", "lora_experts_init"}) {
    SCOPED_TRACE(adapter);
    const Job job{.adapter = adapter, .steps = steps_of("qwen3_moe", {3, 1, 5})};
    const Outcome one = alone(job);
    expect_same_training(shared_by(2, job), one, job);
    expect_same_training(shared_by(4, job, ZeroStage::kGradients), one, job);
  }
}

TEST(SharedExperts, FrozenOnesOfAPackedBaseChangeNoBit) {
  if (on_gpu()) GTEST_SKIP() << "two devices round differently";
  for (const char* base : {"dtype", "nf4", "int4", "mxfp4"}) {
    SCOPED_TRACE(base);
    // The norm is that of the device's gradients alone.
    const Job job{.adapter = "lora_attention_init", .steps = steps_of("qwen3_moe", {2, 4}), .base = base};
    expect_same_bits(shared_by(2, job), train_by(2, job, ZeroStage::kNone));
  }
}

TEST(SharedExperts, GoWithOffloadingAndRecomputation) {
  Job job{.adapter = "lora_experts_init", .steps = steps_of("qwen3_moe", {2, 4})};
  const Outcome plain = shared_by(2, job);
  job.offload = {.optimizer = true, .params = true};
  job.offload_activations = true;
  expect_same_bits(shared_by(2, job), plain);
  job.recompute = job.recompute_on_host = true;
  expect_same_bits(shared_by(2, job), plain);
}

TEST(SharedExperts, AnyNumberOfRanksGoesOnFromWhatWasSaved) {
  const fs::path first = fs::path(::testing::TempDir()) / "hone_shared_experts", second = first.string() + "_2";
  for (const char* adapter : {"", "lora_experts_init"}) {
    SCOPED_TRACE(adapter);
    for (const fs::path& folder : {first, second}) {
      fs::remove_all(folder);
      fs::create_directories(folder);
    }
    const Job whole{.adapter = adapter, .steps = steps_of("qwen3_moe", {2, 4, 2})};
    Job begin = whole, middle = whole, end = whole;
    begin.steps.resize(1);
    begin.save_to = middle.resume_from = first;
    middle.steps.resize(2);
    middle.first = 1;
    middle.save_to = end.resume_from = second;
    end.first = 2;
    const Outcome by_two = shared_by(2, whole);
    // 2, 1 and 2 ranks.
    shared_by(2, begin);
    middle.host_expert_layers = kAllLayers;
    alone(middle);
    expect_same_end(shared_by(2, end), by_two, whole);
    // The same number all the time.
    shared_by(2, middle);
    EXPECT_EQ(shared_by(2, end).bytes, by_two.bytes);
  }
  for (const fs::path& folder : {first, second}) fs::remove_all(folder);
}

/// A model with adapters on attention, so that its experts are frozen, as rank `rank` of two on one host has it.
std::unique_ptr<LoadedModel> frozen_experts(int rank, const WeightFormat& experts, const std::string& base) {
  // Wide enough for tiles of 8 bits.
  const fs::path folder = goldens() / "qwen3_moe/model";
  Json json = HfConfig::read(folder).json();
  json["hidden_size"] = json["moe_intermediate_size"] = 64;
  auto model = std::make_unique<LoadedModel>(HfConfig(json, "config.json"), folder, DType::kBF16, experts);
  TrainableOptions options;
  options.train_base = false;
  options.lora.emplace().target_modules = {"attention"};
  hold_base_as(options, BaseFormat::parse(base, "base"));
  options.ranks = {.rank = rank, .ranks = 2, .host_expert_layers = kAllLayers, .host_ranks = 2};
  model->set_trainable(options);
  return model;
}

struct Held {
  const WeightFormat* experts;
  std::string base;
};

class SharedMemory : public ::testing::TestWithParam<Held> {};

TEST_P(SharedMemory, IsOfAllRanksAndThereOnce) {
  std::mutex mutex;
  std::set<std::string> filled;
  std::vector<int64_t> parts;
  run_ranks(2, [&](Communicator& ranks) {
    const auto model = frozen_experts(ranks.rank(), *GetParam().experts, GetParam().base);
    ParameterStore& store = model->store();
    const ParameterBytes planned = store.bytes();
    store.allocate(device_under_test());
    ThreadPool pool(1);
    Stream stream(device_under_test(), pool);
    Arena scratch(device_under_test(), "scratch");
    scratch.reserve(0);
    initialise_weights(Context(stream, scratch), store, 0.02, 1);
    stream.synchronize();
    order_frozen_experts(store, pool);
    SharedValues* const shared = store.shared_values();
    ASSERT_NE(shared, nullptr);
    EXPECT_FALSE(shared->complete());
    share_values(ranks.control(), store);
    EXPECT_TRUE(shared->complete());
    // A rank plans half of the shared bytes, and allocates whole parameters.
    EXPECT_EQ(planned.on_host, planned.shared);
    EXPECT_NEAR(static_cast<double>(2 * planned.shared), static_cast<double>(shared->all_bytes()), 2);
    int64_t bytes = 0;
    for (const Parameter& p : store.all()) {
      if (!p.spec().of_experts) continue;
      EXPECT_TRUE(&p.value().home() == &kHostShared) << p.name();
      const Tensor &payload = p.value().stored().payload, &scales = p.value().stored().scales;
      bytes += static_cast<int64_t>(payload.bytes() + (scales.defined() ? scales.bytes() : 0));
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(!p.value().filled_here() || filled.insert(p.name()).second) << p.name();
    }
    EXPECT_GE(shared->all_bytes(), bytes);
    EXPECT_LT(shared->all_bytes(), bytes + 4 * static_cast<int64_t>(mapping_granularity({})));
    {
      const std::lock_guard lock(mutex);
      parts.push_back(static_cast<int64_t>(shared->own().size()));
    }
    // What one rank writes is what the other reads, at another address.
    const auto read = [&](size_t i) { return *(shared->parameters()[i]->value().stored().payload.data + 1); };
    ranks.control().barrier();
    for (size_t i = 0; i < shared->parameters().size(); ++i) {
      const Parameter& p = *shared->parameters()[i];
      if (p.value().filled_here()) *(p.value().stored().payload.data + 1) = std::byte(100 + i);
    }
    ranks.control().barrier();
    for (size_t i = 0; i < shared->parameters().size(); ++i) EXPECT_EQ(read(i), std::byte(100 + i)) << i;
    const std::vector<std::string> addresses = ranks.control().exchange(
        std::to_string(reinterpret_cast<uintptr_t>(shared->parameters().front()->value().stored().payload.data)));
    EXPECT_NE(addresses[0], addresses[1]);
    const std::lock_guard lock(mutex);  // both have come here
    EXPECT_EQ(filled.size(), shared->parameters().size());
    EXPECT_EQ(parts[0] + parts[1], shared->all_bytes());
  });
}

INSTANTIATE_TEST_SUITE_P(Formats, SharedMemory,
                         ::testing::Values(Held{&dense_format(), "dtype"}, Held{&int8_format(), "dtype"},
                                           Held{&dense_format(), "nf4"}, Held{&dense_format(), "int4"}),
                         [](const auto& test) {
                           return test.param.base != "dtype"    ? test.param.base
                                  : test.param.experts->dense() ? std::string("bfloat16")
                                                                : std::string("int8");
                         });

TEST(SharedExperts, AreWholeOnEachHost) {
  const auto shared = [](int ranks, int host_ranks) {
    int64_t all = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const ParameterBytes bytes = [&] {
        LoadedModel model(goldens() / "qwen3_moe/model", DType::kBF16);
        TrainableOptions options;
        options.train_base = false;
        options.lora.emplace().target_modules = {"attention"};
        options.ranks = {.rank = rank, .ranks = ranks, .host_expert_layers = kAllLayers, .host_ranks = host_ranks};
        model.set_trainable(options);
        return model.store().bytes();
      }();
      all += bytes.shared;
    }
    return static_cast<double>(all);
  };
  const double once = shared(2, 2);
  EXPECT_NEAR(shared(4, 4), once, 4.0 * static_cast<double>(mapping_granularity({})));
  EXPECT_NEAR(shared(4, 2), 2 * once, 4.0 * static_cast<double>(mapping_granularity({})));
}

TEST(SharedExperts, AreRefusedByNameWhereRanksCannotShareMemory) {
  run_ranks(2, [](Communicator& ranks) {
    const auto model = frozen_experts(ranks.rank(), dense_format(), "dtype");
    model->store().allocate(device_under_test());
    SecondElsewhere control(ranks.control());
    std::string refused;
    try {
      share_values(control, model->store());
    } catch (const UserError& error) {
      refused = error.message() + "; " + error.fix();
    }
    EXPECT_THAT(refused, HasSubstr("cannot share the memory of the experts: ranks are on several hosts; "));
    EXPECT_THAT(refused, HasSubstr("one rank per host"));
  });
}

TEST(SharedExperts, EndWithARankThatIsLost) {
  const MicroBatch batch = steps_of("qwen3_moe", {1})[0].micro_batches[0];
  for (const char* adapter : {"", "lora_experts_init"}) {
    const fs::path folder = goldens() / "qwen3_moe";
    const auto body = [&](Communicator& ranks) {
      ThreadPool pool(1);
      Stream stream(device_under_test(), pool);
      Replay replay(folder / "model", stream, {batch.tokens(), 1, batch.tokens(), batch.max_seqlen},
                    {.adapter = *adapter == 0 ? fs::path() : folder / adapter,
                     .ranks = &ranks,
                     .share = {.host_expert_layers = kAllLayers}});
      const auto engine = replay.make_engine(0.0);
      for (int64_t step = 0; step < 3; ++step) {
        if (step == 2 && ranks.rank() == 1) throw Error(ExitCode::kDeviceFailed, "it is lost", "", "");
        engine->accumulate({.micro_batches = {batch, batch}}, step);
        engine->update({1e-3, step});
      }
    };
    try {
      run_ranks(2, body);
      ADD_FAILURE() << "it goes on";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("it is lost"));
    }
  }
}

TEST(SharedExperts, TheRowsOfACaseHold) {
  if (on_gpu()) GTEST_SKIP() << "ranks that are threads are CPU ranks";
  for (const int stage : {0, 3}) {
    VerifyOptions options;
    options.case_directory = goldens() / "qwen3_moe";
    options.keys = {"experts_device=cpu", "zero_stage=" + std::to_string(stage)};
    options.ranks = 2;
    const VerifyReport report = verify_case(options);
    EXPECT_TRUE(report.ok()) << report_table(report);
  }
}

}  // namespace
}  // namespace hone
