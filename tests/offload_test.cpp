// Tests that data in host memory, on one rank and on several, changes no bit, and where it is.
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "app/verify/replay.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "params/placement.h"
#include "rank_jobs.h"
#include "session/loaded_model.h"

namespace hone {
namespace {

/// All kinds of offloading, separately and together.
constexpr std::array kOffloads = {Offload{.optimizer = true}, Offload{.params = true}, Offload{.experts = true},
                                  Offload{.optimizer = true, .params = true},
                                  Offload{.experts = true, .expert_layers = 1}};

void expect_offload_changes_nothing(Job job, const std::function<Outcome(const Job&)>& trained) {
  const Outcome resident = trained(job);
  for (const Offload& offload : kOffloads) {
    job.offload = offload;
    for (const bool activations : {false, true}) {
      SCOPED_TRACE(job.model + " " + job.adapter + (offload.optimizer ? " optimizer" : "") +
                   (offload.params ? " params" : "") + (offload.experts ? " experts" : "") +
                   (offload.expert_layers == kAllLayers ? "" : " of a layer") + (activations ? " activations" : "") +
                   (job.recompute ? ", recomputed" : ""));
      job.offload_activations = activations;
      expect_same_bits(trained(job), resident);
    }
  }
}

TEST(Offload, KeepsEveryBitOnOneRank) {
  const auto alone = [](const Job& job) { return train(job, nullptr, ZeroStage::kNone); };
  for (const char* model : {"qwen3_moe", "deepseek_v3", "qwen3_next", "gpt_oss"}) {
    expect_offload_changes_nothing({.model = model, .steps = steps_of(model, {2, 3})}, alone);
  }
  const std::vector<StepData> steps = steps_of("qwen3_moe", {2, 3});
  const TrainingFormats codes{.m = DType::kI8, .v = DType::kU8},
      narrow{.gradient = DType::kBF16, .master = DType::kBF16, .m = DType::kBF16, .v = DType::kBF16};
  expect_offload_changes_nothing({.dtype = DType::kBF16, .steps = steps, .recompute = true}, alone);
  expect_offload_changes_nothing({.dtype = DType::kBF16, .formats = codes, .steps = steps}, alone);
  expect_offload_changes_nothing({.dtype = DType::kBF16, .formats = narrow, .steps = steps}, alone);
  expect_offload_changes_nothing({.adapter = "lora_attention_init", .steps = steps, .recompute = true}, alone);
  expect_offload_changes_nothing({.adapter = "lora_experts_init", .steps = steps}, alone);
  expect_offload_changes_nothing({.adapter = "lora_dora_init", .steps = steps}, alone);
}

TEST(Offload, KeepsEveryBitWhereLayersAreSteppedInBackward) {
  const auto alone = [](const Job& job) { return train(job, nullptr, ZeroStage::kNone); };
  const std::vector<StepData> steps = steps_of("qwen3_moe", {1, 1, 1});
  expect_offload_changes_nothing({.max_grad_norm = 0, .steps = steps, .recompute = true, .optimizer_in_backward = true},
                                 alone);
  expect_offload_changes_nothing({.adapter = "lora_experts_init",
                                  .formats = {.m = DType::kI8, .v = DType::kU8},
                                  .max_grad_norm = 0,
                                  .steps = steps,
                                  .base = "nf4",
                                  .recompute = true,
                                  .optimizer_in_backward = true},
                                 alone);
}

TEST(Offload, KeepsEveryBitOfSharedWeights) {
  const auto together = [](const Job& job) { return train_by(3, job, ZeroStage::kValues); };
  const std::vector<StepData> steps = steps_of("qwen3_moe", {3, 2});
  expect_offload_changes_nothing({.steps = steps}, together);
  expect_offload_changes_nothing({.adapter = "lora_experts_init", .steps = steps, .recompute = true}, together);
  // Frozen weights that are whole on every rank are offloaded, too.
  const auto apart = [](const Job& job) { return train_by(2, job, ZeroStage::kState); };
  expect_offload_changes_nothing({.adapter = "lora_attention_init", .steps = steps}, apart);
}

/// Frozen weights that stay in the files: stored expert by expert, fused, transposed, in shards, quantised.
TEST(FrozenInFiles, KeepsEveryBit) {
  const auto alone = [](const Job& job) { return train(job, nullptr, ZeroStage::kNone); };
  const auto same = [](Job job, const std::function<Outcome(const Job&)>& trained) {
    const Outcome resident = trained(job);
    job.frozen_in_files = true;
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(job.model + " " + job.adapter + (recompute ? ", recomputed" : ""));
      job.recompute = recompute;
      expect_same_bits(trained(job), resident);
    }
  };
  for (const char* model : {"qwen3_moe", "deepseek_v3", "qwen3_next", "gpt_oss", "granitemoe", "qwen3_5_moe"}) {
    for (const char* adapter : {"lora_attention_init", "lora_experts_init"}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        same({.model = model, .adapter = adapter, .dtype = dtype, .steps = steps_of(model, {2, 3})}, alone);
      }
    }
  }
  const Job job{.adapter = "lora_experts_init", .steps = steps_of("qwen3_moe", {3, 2})};
  for (const ZeroStage stage : {ZeroStage::kNone, ZeroStage::kState, ZeroStage::kValues}) {
    same(job, [stage](const Job& one) { return train_by(2, one, stage); });
  }
  Job spread = job;
  spread.expert_ranks = 2;
  same(spread, [](const Job& one) { return train_by(2, one, ZeroStage::kNone); });
}

TEST(FrozenInFiles, NoticesAFileThatIsWrittenTo) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("hone_frozen_" + std::to_string(getpid()));
  fs::remove_all(folder);
  fs::copy(goldens() / "qwen3_moe/model", folder);
  ThreadPool pool(2);
  Stream stream(device_under_test(), pool);
  Replay replay(folder, stream, {8, 1, 8, 8},
                {.adapter = goldens() / "qwen3_moe/lora_attention_init", .share = {.frozen_in_files = true}});
  const MicroBatch batch = pack_documents({{.input_ids = {1, 2, 3}, .labels = {1, 2, 3}}});
  EXPECT_EQ(replay.logits(batch).size() % 3, 0u);
  for (const auto& file : fs::directory_iterator(folder)) {
    if (file.path().extension() == ".safetensors") fs::last_write_time(file, fs::file_time_type::clock::now());
  }
  EXPECT_THROW(replay.logits(batch), UserError);
  fs::remove_all(folder);
}

const std::array kBases = {"nf4", "int8", "int4", "fp8", "mxfp4"};

TEST(PackedBase, TrainsAdaptersAsTheDenseBaseOfItsValues) {
  for (const char* model : {"qwen3_moe", "deepseek_v3", "gpt_oss"}) {
    for (const char* base : kBases) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(std::string(model) + " " + base + " " + std::string(name_of(dtype)));
        Job job{.model = model, .adapter = "lora_attention_init", .dtype = dtype, .steps = steps_of(model, {2, 3})};
        job.base = base;
        const Outcome packed = train(job, nullptr, ZeroStage::kNone);
        job.unpacked = true;
        expect_same_bits(packed, train(job, nullptr, ZeroStage::kNone));
      }
    }
  }
}

TEST(PackedBase, KeepsEveryBitWhereverItsCodesAre) {
  for (const char* base : kBases) {
    SCOPED_TRACE(base);
    Job job{.adapter = "lora_experts_init", .steps = steps_of("qwen3_moe", {3, 2}), .base = base};
    const auto alone = [](const Job& one) { return train(one, nullptr, ZeroStage::kNone); };
    expect_offload_changes_nothing(job, alone);
    job.recompute = true;
    expect_offload_changes_nothing(job, alone);
    const Outcome whole = train_by(3, job, ZeroStage::kNone);
    expect_same_bits(train_by(3, job, ZeroStage::kValues), whole);
    job.offload.params = true;
    expect_same_bits(train_by(3, job, ZeroStage::kValues), whole);
  }
}

TEST(FrozenInFiles, TakesTwoSlotsOfEachHalf) {
  constexpr int64_t kLayers = 64;
  const RankShare resident{.least_sharded_elements = 0}, in_files{.frozen_in_files = true, .least_sharded_elements = 0};
  EXPECT_LT(bytes_of(in_files, kLayers, false).weights, bytes_of(resident, kLayers, false).weights / 4);
  EXPECT_EQ(bytes_of(in_files, kLayers, false).host, 0);
}

TEST(Offload, TakesWhatItSaysFromTheDevice) {
  constexpr int64_t kLayers = 64;
  const auto bytes = [&](Offload offload) {
    return bytes_of({.offload = offload, .least_sharded_elements = 0}, kLayers);
  };
  const ParameterBytes resident = bytes({}), state = bytes({.optimizer = true}), values = bytes({.params = true});
  EXPECT_EQ(state.moments + state.master, 0);
  EXPECT_EQ(state.host, resident.moments + resident.master);
  EXPECT_EQ(state.weights, resident.weights);
  EXPECT_EQ(resident.host, 0);
  // Two slots for each kind of half remain, and weights outside layers; tensors are padded to 256 elements.
  EXPECT_LT(values.weights, resident.weights / 4);
  EXPECT_GE(values.weights + values.host, resident.weights);
  EXPECT_EQ(values.moments, resident.moments);
}

TEST(Offload, TakesAdaptersAlongUnlessRanksHandThemOn) {
  using enum ZeroStage;
  for (const auto& [ranks, stage, taken] :
       {std::tuple(1, kNone, true), {2, kNone, true}, {2, kState, false}, {2, kGradients, false}, {2, kValues, true}}) {
    LoadedModel model(goldens() / "qwen3_moe/model", DType::kF32);
    TrainableOptions options;
    options.train_base = false;
    options.lora.emplace();
    options.lora->r = 4;
    options.lora->target_modules = {"attention", "all-experts"};
    options.ranks = {.ranks = ranks, .stage = stage, .offload = {.params = true}, .least_sharded_elements = 0};
    model.set_trainable(options);
    int adapters = 0;
    for (const Parameter& p : model.store().all()) {
      if (p.spec().kind != ParameterKind::kLora) continue;
      ++adapters;
      EXPECT_EQ(p.value().home().offloaded(), taken) << p.name() << traced(ranks, stage);
    }
    EXPECT_GT(adapters, 0);
  }
}

TEST(Offload, HasOpsReadWeightsInTheSlotsOfTheirHalves) {
  ThreadPool pool(1);
  LoadedModel model(goldens() / "qwen3_moe/model", DType::kF32);
  TrainableOptions options;
  options.ranks = {.offload = {.params = true}, .least_sharded_elements = 0};
  model.set_trainable(options);
  model.load(device_under_test(), pool, 0);
  std::map<std::pair<int, std::string>, std::set<const void*>> places;  // by slot and name within the layer
  for (const Parameter& p : model.store().all()) {
    if (p.spec().layer < 0 || p.spec().kind == ParameterKind::kBuffer) continue;
    ASSERT_TRUE(p.value().home().brought) << p.name();
    EXPECT_EQ(p.value().stored().payload.device, Device{}) << p.name();
    EXPECT_EQ(p.view().payload.device, device_under_test()) << p.name();
    EXPECT_NE(p.view().payload.data, p.value().stored().payload.data) << p.name();
    const std::string layer = "layers." + std::to_string(p.spec().layer) + ".";
    places[{p.group()->slot(), p.name().substr(p.name().find(layer) + layer.size())}].insert(p.view().payload.data);
  }
  for (const auto& [name, addresses] : places) EXPECT_EQ(addresses.size(), 1u) << name.second;
}

}  // namespace
}  // namespace hone
