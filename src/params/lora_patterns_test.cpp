#include "params/lora_patterns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/cpu/thread_pool.h"
#include "params/adapter.h"
#include "params/expert_parts.h"
#include "params/lora.h"
#include "params/store_testing.h"

namespace hone {
namespace {

using ::testing::HasSubstr;

struct Scale {
  int64_t rank = 0;
  double alpha = 0, scaling = 0;

  bool operator==(const Scale&) const = default;
};

/// The scale of each adapter, by its target and the layer's kind of weight.
std::map<std::string, Scale> scales(LoraOptions options) {
  ParameterStore store;
  testing::add_model(store, {});
  options.r = 4;
  options.alpha = 8;
  if (options.target_modules.empty()) options.target_modules = {"all-linear", "all-experts"};
  attach_lora(store, options);
  std::map<std::string, Scale> result;
  for (const Parameter& p : store.all()) {
    for (const auto& attached : p.adapters()) {
      const LowRank& low_rank = *attached->low_rank();
      EXPECT_EQ(low_rank.a->shape()[-2], low_rank.b->shape()[-1]);
      EXPECT_EQ(low_rank.a->shape()[-2], attached->scale().rank);
      const std::string& target = attached->place().target;
      result[is_experts(p) ? "experts." + target : target] = {attached->scale().rank, attached->scale().alpha,
                                                              static_cast<double>(low_rank.factors.scaling)};
    }
  }
  return result;
}

std::string refusal(const LoraOptions& options) {
  return testing::user_error([&] { scales(options); });
}

TEST(LoraPatterns, TheFirstThatMatchesCounts) {
  LoraOptions options;
  options.rank_pattern = {{"q_proj", 2}, {"self_attn.*", 6}, {"all-experts", 1}};
  options.alpha_pattern = {{"o_proj", 3}};
  const auto all = scales(options);
  EXPECT_EQ(all.at("q_proj"), (Scale{2, 8, 4}));
  EXPECT_EQ(all.at("o_proj"), (Scale{6, 3, 0.5}));
  EXPECT_EQ(all.at("up_proj"), (Scale{4, 8, 2})) << "of the shared MLP, which no pattern names";
  for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
    EXPECT_EQ(all.at(std::string("experts.") + part), (Scale{1, 8, 8})) << part;
  }
}

TEST(LoraPatterns, ExpertsAreCalledAsFilesOrMemoryCallThem) {
  for (const char* gate : {"w1", "experts\\.\\d+\\.w1", "experts.[0-9]+.gate_proj", "re:.*experts.*w1"}) {
    LoraOptions options;
    options.rank_pattern = {{gate, 2}};
    const auto all = scales(options);
    EXPECT_EQ(all.at("experts.gate_proj").rank, 2) << gate;
    EXPECT_EQ(all.at("experts.up_proj").rank, 4) << gate;
  }
  LoraOptions fused;
  fused.expert_lora = ExpertLora::kShared;
  fused.rank_pattern = {{"experts.gate_up_proj", 2}};
  EXPECT_EQ(scales(fused).at("experts.experts.gate_up_proj").rank, 2);
  EXPECT_EQ(scales(fused).at("experts.experts.down_proj").rank, 4);
}

TEST(LoraPatterns, OnlyWholeNamesOrTheirEndsMatch) {
  for (const char* pattern : {"proj", "q_pro", "attn.q_proj", "q_proj.weight", "xq_proj"}) {
    LoraOptions options;
    options.rank_pattern = {{pattern, 2}};
    EXPECT_THAT(refusal(options), HasSubstr("matches no module that has an adapter")) << pattern;
  }
}

TEST(LoraPatterns, OnesThatMatchNothingOrAPartAreRefused) {
  LoraOptions options;
  options.rank_pattern = {{"q_porj", 2}};
  EXPECT_THAT(refusal(options), HasSubstr("Did you mean 'q_proj'"));
  EXPECT_THAT(refusal(options), HasSubstr("lora_rank_pattern"));
  options.of_files = true;
  EXPECT_EQ(refusal(options), "");
  options = {};
  options.alpha_pattern = {{"experts.1.w2", 2}};
  EXPECT_THAT(refusal(options), HasSubstr("matches 1 of the 3 experts"));
  options.alpha_pattern = {{"q_proj(", 2}};
  EXPECT_THAT(refusal(options), HasSubstr("not a regular expression"));
  options.alpha_pattern = {{"q_proj", 2}, {"o_proj", 2}};
  options.target_modules = {"o_proj"};
  EXPECT_THAT(refusal(options), HasSubstr("'q_proj' matches no module that has an adapter"));
}

TEST(LoraPatterns, RankStabilisedScalingTakesTheRankInForce) {
  LoraOptions options;
  options.use_rslora = true;
  options.rank_pattern = {{"q_proj", 16}};
  EXPECT_EQ(scales(options).at("q_proj"), (Scale{16, 8, 2}));
  EXPECT_EQ(scales(options).at("o_proj"), (Scale{4, 8, 4}));
}

TEST(LoraLayers, OnlyTheListedOnesGetAdapters) {
  const auto adapted = [](const LoraOptions& options) {
    ParameterStore store;
    for (int layer = 0; layer < 3; ++layer) {
      const std::string name = "model.layers." + std::to_string(layer) + ".self_attn.q_proj.weight";
      store.add({name, {6, 4}, ParameterKind::kAttention, layer, {}}, DType::kF32);
    }
    attach_lora(store, options);
    std::vector<int> layers;
    for (const Parameter& p : store.all()) {
      if (!p.adapters().empty()) layers.push_back(p.spec().layer);
    }
    return layers;
  };
  LoraOptions options;
  options.target_modules = {"attention"};
  options.layers = {0, 2};
  EXPECT_EQ(adapted(options), (std::vector<int>{0, 2}));
  options.layers = {3};
  EXPECT_THAT(testing::user_error([&] { adapted(options); }), HasSubstr("no layer 3: they are numbered from 0 to 2"));
  options.layers = {1};
  options.target_modules = {"*layers.0.*"};
  EXPECT_THAT(testing::user_error([&] { adapted(options); }), HasSubstr("lora_layers"));
}

TEST(LoraInits, HaveTheSpreadOfPefts) {
  const auto deviations = [](LoraInit init) {
    ParameterStore store;
    store.add({"model.layers.0.self_attn.q_proj.weight", {4096, 1024}, ParameterKind::kAttention, 0, {}}, DType::kF32);
    attach_lora(store, {.r = 16, .target_modules = {"attention"}, .target_parameters = {}});
    store.allocate(Device{});
    ThreadPool pool(1);
    Stream stream(Device{}, pool);
    Arena scratch(Device{}, "scratch");
    scratch.reserve(0);
    initialise_lora(Context(stream, scratch), store, 1, init);
    stream.synchronize();
    std::vector<double> result;
    for (const Parameter* p : store.trainable()) {
      double sum = 0;
      for (int64_t i = 0; i < p->shape().numel(); ++i) sum += std::pow(p->value().whole().as<float>()[i], 2);
      result.push_back(std::sqrt(sum / static_cast<double>(p->shape().numel())));
    }
    return result;
  };
  // A [16, 1024], B [4096, 16]; a uniform number in ±x has the deviation x / √3. 16384 numbers give it to 2 %.
  const double a = 1 / std::sqrt(3.0 * 1024), b = 1 / std::sqrt(3.0 * 16);
  EXPECT_NEAR(deviations(LoraInit::kKaiming)[0] / a, 1, 0.02);
  EXPECT_EQ(deviations(LoraInit::kKaiming)[1], 0);
  EXPECT_NEAR(deviations(LoraInit::kGaussian)[0] * 16, 1, 0.03);
  EXPECT_EQ(deviations(LoraInit::kGaussian)[1], 0);
  EXPECT_NEAR(deviations(LoraInit::kRandom)[0] / a, 1, 0.02);
  EXPECT_NEAR(deviations(LoraInit::kRandom)[1] / b, 1, 0.02);
}

}  // namespace
}  // namespace hone
