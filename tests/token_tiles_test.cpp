// Tests that experts and MLPs which take tokens in tiles (moe_token_tile, mlp_token_tile) train as those that take all
// at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>

#include "core/cpu/thread_pool.h"
#include "device_main.h"
#include "rank_jobs.h"
#include "session/loaded_model.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

/// A document of a case has some twenty tokens.
constexpr int64_t kTile = 7, kMoreThanAll = 4096;

Outcome train_alone(Job job, std::optional<int64_t> tile) {
  job.moe_token_tile = tile;
  return train(job, nullptr, ZeroStage::kNone);
}

Outcome train_mlps_alone(Job job, std::optional<int64_t> tile) {
  job.mlp_token_tile = tile;
  return train(job, nullptr, ZeroStage::kNone);
}

/// On a GPU a product of other rows may have another kernel (ops/linear).
void expect_same_products(const Outcome& tiled, const Outcome& all, const Job& job) {
  on_gpu() ? expect_same_numbers(tiled, all, job, 5e-3, 0.05) : expect_same_bits(tiled, all);
}

/// Dense MLPs, shared experts with a gate, both, and shared experts with gate and up in one weight.
const std::string kModelsWithMlps[] = {"llama", "qwen2_moe", "deepseek_v2", "granitemoehybrid"};

Job job_of(const std::string& adapter) { return {.adapter = adapter, .steps = steps_of("qwen3_moe", {3, 1})}; }

TEST(TokenTiles, TrainTheSameBitsWhereNoWeightOfExpertsIsTrained) {
  for (const char* base : {"dtype", "nf4"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Job job = job_of("lora_attention_init");
      job.base = base;
      job.dtype = dtype;
      const Outcome all = train_alone(job, 0);
      for (const int64_t tile : {int64_t{1}, kTile, kMoreThanAll}) expect_same_bits(train_alone(job, tile), all);
    }
  }
}

TEST(TokenTiles, TrainAsAllTokensAtOnce) {
  for (const char* adapter : {"", "lora_experts_init"}) {
    const Job job = job_of(adapter);
    const Outcome all = train_alone(job, 0), tiled = train_alone(job, kTile);
    EXPECT_EQ(bits_of(tiled.steps[0].loss.loss), bits_of(all.steps[0].loss.loss)) << "before the first update";
    expect_same_training(tiled, all, job);
    expect_same_bits(train_alone(job, kTile), tiled);
    expect_same_bits(train_alone(job, kMoreThanAll), all);
  }
}

TEST(TokenTiles, GiveTheSameBitsWithRecomputationAndInHostMemory) {
  for (const char* adapter : {"", "lora_experts_init"}) {
    const Job job = job_of(adapter);
    const Outcome kept = train_alone(job, kTile);
    Job other = job;
    other.recompute = true;
    expect_same_bits(train_alone(other, kTile), kept);
    other.offload_activations = true;
    expect_same_bits(train_alone(other, kTile), kept);
    other.offload.experts = *adapter != '\0';  // weights that are trained stay on the device
    expect_same_bits(train_alone(other, kTile), kept);
  }
}

TEST(TokenTiles, OfExpertsOnTheCpu) {
  for (const char* adapter : {"", "lora_experts_init"}) {
    Job job = job_of(adapter);
    job.host_expert_layers = kAllLayers;
    const Outcome all = train_alone(job, 0), tiled = train_alone(job, kTile);
    expect_same_training(tiled, all, job);
    job.recompute = job.recompute_on_host = true;
    expect_same_bits(train_alone(job, kTile), tiled);
  }
}

TEST(TokenTiles, InNarrowFormatsSumInFloat32) {
  Job job = job_of("");
  job.dtype = DType::kBF16;
  job.formats = {.gradient = DType::kBF16, .master = DType::kBF16, .m = DType::kBF16, .v = DType::kBF16};
  const Outcome tiled = train_alone(job, kTile);
  expect_same_bits(train_alone(job, kTile), tiled);
  // A gradient is rounded once, by 2^-9 of its value, whatever the tile.
  expect_same_numbers(tiled, train_alone(job, 0), job, 5e-3, 0.05);
}

TEST(TokenTiles, OfSeveralRanksTrainAsOfOne) {
  for (const char* adapter : {"", "lora_experts_init"}) {
    Job job = job_of(adapter);
    job.steps = steps_of("qwen3_moe", {4, 3});
    const Outcome one = train_alone(job, kTile);
    job.moe_token_tile = kTile;
    for (const ZeroStage stage : kStages) {
      SCOPED_TRACE(traced(2, stage));
      const Outcome two = train_by(2, job, stage);
      expect_same_training(two, one, job);
      expect_same_bits(train_by(2, job, stage), two);
    }
  }
}

TEST(TokenTiles, GoOnToTheSameBits) {
  const fs::path folder = fs::path(::testing::TempDir()) / "hone_token_tiles";
  Job whole = job_of("lora_experts_init");
  whole.moe_token_tile = kTile;
  Job begin = whole, rest = whole;
  begin.steps.resize(1);
  begin.save_to = rest.resume_from = folder;
  rest.first = 1;
  fs::remove_all(folder);
  fs::create_directories(folder);
  train(begin, nullptr, ZeroStage::kNone);
  EXPECT_EQ(train(rest, nullptr, ZeroStage::kNone).bytes, train(whole, nullptr, ZeroStage::kNone).bytes);
  fs::remove_all(folder);
}

TEST(MlpTiles, TrainTheSameBitsWhereNoWeightOfMlpsIsTrained) {
  for (const std::string& model : kModelsWithMlps) {
    for (const char* base : {"dtype", "nf4"}) {
      Job job{.model = model, .adapter = "lora_attention_init", .steps = steps_of(model, {2, 1})};
      job.base = base;
      job.dtype = DType::kBF16;
      const Outcome all = train_mlps_alone(job, 0);
      for (const int64_t tile : {int64_t{1}, kTile}) expect_same_products(train_mlps_alone(job, tile), all, job);
      expect_same_bits(train_mlps_alone(job, kMoreThanAll), all);
    }
  }
}

TEST(MlpTiles, TrainAsAllTokensAtOnce) {
  for (const std::string& model : kModelsWithMlps) {
    SCOPED_TRACE(model);
    const Job job{.model = model, .steps = steps_of(model, {3, 1})};
    const Outcome all = train_mlps_alone(job, 0), tiled = train_mlps_alone(job, kTile);
    if (!on_gpu()) {
      EXPECT_EQ(bits_of(tiled.steps[0].loss.loss), bits_of(all.steps[0].loss.loss)) << "before the first update";
    }
    expect_same_training(tiled, all, job);
    EXPECT_NE(tiled.bytes, all.bytes) << "gradients of weights are summed in another order";
    expect_same_bits(train_mlps_alone(job, kTile), tiled);
    expect_same_bits(train_mlps_alone(job, kMoreThanAll), all);
  }
}

TEST(MlpTiles, GiveTheSameBitsWithRecomputationAndInHostMemory) {
  const Job job{.model = "deepseek_v2", .steps = steps_of("deepseek_v2", {2, 1})};
  const Outcome kept = train_mlps_alone(job, kTile);
  Job other = job;
  other.recompute = true;
  expect_same_bits(train_mlps_alone(other, kTile), kept);
  other.offload_activations = true;
  expect_same_bits(train_mlps_alone(other, kTile), kept);
}

TEST(MlpTiles, AddToNarrowGradientsAsMicroBatchesDo) {
  Job job{.model = "llama", .steps = steps_of("llama", {2, 1})};
  job.dtype = DType::kBF16;
  job.formats = {.gradient = DType::kBF16, .master = DType::kBF16, .m = DType::kBF16, .v = DType::kBF16};
  const Outcome tiled = train_mlps_alone(job, kTile);
  expect_same_bits(train_mlps_alone(job, kTile), tiled);
  expect_same_numbers(tiled, train_mlps_alone(job, 0), job, 5e-3, 0.05);
}

TEST(MlpTiles, OfSeveralRanksTrainAsOfOne) {
  Job job{.model = "llama", .steps = steps_of("llama", {4, 3})};
  const Outcome one = train_mlps_alone(job, kTile);
  job.mlp_token_tile = kTile;
  for (const ZeroStage stage : kStages) {
    SCOPED_TRACE(traced(2, stage));
    const Outcome two = train_by(2, job, stage);
    expect_same_training(two, one, job);
    expect_same_bits(train_by(2, job, stage), two);
  }
}

/// The plan of a step of so many tokens; those of qwen3_moe choose two experts each.
MemoryPlan plan_of(std::optional<int64_t> tile, RecomputePolicy recompute, int64_t tokens, int64_t on_host = 0,
                   const std::string& name = "qwen3_moe") {
  ThreadPool pool(1);
  Stream stream(device_under_test(), pool);
  LoadedModel model(goldens() / name / "model", DType::kBF16);
  TrainableOptions trainable;
  trainable.ranks.host_expert_layers = on_host;
  model.set_trainable(trainable);
  model.store().allocate_dry(device_under_test());
  const int64_t longest = std::min<int64_t>(tokens, 300000);
  model.decoder().prepare(stream, longest);
  EngineOptions options;
  options.capacity = {.max_tokens = tokens, .max_documents = 100, .max_supervised = 16, .max_seqlen = longest};
  options.moe_token_tile = options.mlp_token_tile = tile;
  options.recompute = recompute;
  return Engine(model.decoder(), model.store(), stream, options).plan();
}

TEST(TokenTiles, AreChosenByThePlanWhereRowsAreManyAndRecomputed) {
  constexpr int64_t kMany = 300000, kFew = 262144;
  constexpr RecomputePolicy kAll{.level = RecomputeLevel::kEverything};
  const auto tile = [](RecomputePolicy recompute, int64_t tokens, int64_t on_host = 0) {
    return plan_of({}, recompute, tokens, on_host).moe_token_tile;
  };
  EXPECT_EQ(tile(kAll, kMany), 131072);
  EXPECT_EQ(tile(kAll, kFew), 0);
  EXPECT_EQ(tile({.level = RecomputeLevel::kExperts}, kMany), 131072);
  EXPECT_EQ(tile({.level = RecomputeLevel::kActivations}, kMany), 0) << "what experts keep is in memory in any case";
  EXPECT_EQ(tile(kAll, kMany, kAllLayers), 0) << "the host keeps it";
  EXPECT_EQ(tile({.level = RecomputeLevel::kEverything, .on_host = true}, kMany, kAllLayers), 131072);
}

TEST(TokenTiles, BoundTheMemoryOfExperts) {
  constexpr RecomputePolicy kAll{.level = RecomputeLevel::kEverything};
  const auto activations = [&](std::optional<int64_t> tile, int64_t tokens) {
    return plan_of(tile, kAll, tokens).activations;
  };
  EXPECT_EQ(plan_of(4096, {}, 16384).moe_token_tile, 4096);
  EXPECT_LT(activations({}, 300000), activations(0, 300000));
  // h and the activations, 3 I bfloat16, of the two rows of each token beyond the tile.
  EXPECT_LT(activations(4096, 65536), activations(0, 65536) - (65536 - 4096) * 2 * 3 * 24 * 2);
}

int64_t width_of_llama() {
  LoadedModel model(goldens() / "llama/model", DType::kBF16);
  return model.decoder().config().widest_mlp();
}

TEST(MlpTiles, AreChosenByThePlanWhereRowsAreManyAndRecomputed) {
  const int64_t width = width_of_llama(), most = kUntiledMlp / width;
  const auto tile = [](RecomputeLevel level, int64_t tokens) {
    return plan_of({}, {.level = level}, tokens, 0, "llama").mlp_token_tile;
  };
  EXPECT_EQ(tile(RecomputeLevel::kEverything, most), 0);
  EXPECT_EQ(tile(RecomputeLevel::kEverything, most + 1), kMlpTile / width / 128 * 128);
  EXPECT_EQ(tile(RecomputeLevel::kExperts, most + 1), 0) << "what MLPs keep is in memory in any case";
  EXPECT_EQ(plan_of({}, {.level = RecomputeLevel::kEverything}, most + 1).mlp_token_tile, 0) << "no MLPs";
  EXPECT_EQ(bounded_mlp_tile(1 << 20, 25600), 10368);
}

TEST(MlpTiles, BoundTheMemoryOfMlps) {
  constexpr int64_t kTokens = 65536, kSome = 4096;
  const auto activations = [&](int64_t tile) {
    return plan_of(tile, {.level = RecomputeLevel::kEverything}, kTokens, 0, "llama").activations;
  };
  // Gate, up and the activation, bfloat16, of the tokens beyond the tile.
  EXPECT_LT(activations(kSome), activations(0) - (kTokens - kSome) * 3 * width_of_llama() * 2);
}

}  // namespace
}  // namespace hone
