#include "params/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/cpu/thread_pool.h"
#include "params/adapter.h"
#include "params/pattern.h"
#include "params/store_testing.h"

namespace hone {
namespace {

using ::testing::HasSubstr;

LoraOptions options_for(std::vector<std::string> targets, ExpertLora experts = ExpertLora::kSplit) {
  return {.r = 2, .alpha = 8, .expert_lora = experts, .target_modules = std::move(targets), .target_parameters = {}};
}

std::map<std::string, Shape> lora_shapes(const LoraOptions& options) {
  ParameterStore store;
  testing::add_model(store, {});
  attach_lora(store, options);
  std::map<std::string, Shape> shapes;
  for (const Parameter& p : store.all()) {
    if (p.spec().kind == ParameterKind::kLora) shapes[p.name()] = p.shape();
  }
  return shapes;
}

const std::string kLayer = "model.layers.0.";

TEST(Lora, TargetWordsSelectGroups) {
  const std::map<std::string, Shape> attention = {{kLayer + "self_attn.q_proj.lora_A.weight", {2, 4}},
                                                  {kLayer + "self_attn.q_proj.lora_B.weight", {6, 2}},
                                                  {kLayer + "self_attn.o_proj.lora_A.weight", {2, 6}},
                                                  {kLayer + "self_attn.o_proj.lora_B.weight", {4, 2}}};
  EXPECT_EQ(lora_shapes(options_for({"attention"})), attention);
  auto linear = attention;
  linear[kLayer + "mlp.shared.up_proj.lora_A.weight"] = {2, 4};
  linear[kLayer + "mlp.shared.up_proj.lora_B.weight"] = {5, 2};
  EXPECT_EQ(lora_shapes(options_for({"all-linear"})), linear);
  EXPECT_EQ(lora_shapes(options_for({"q_proj", "o_proj"})), attention);
  EXPECT_EQ(lora_shapes(options_for({"attention", "*q_proj"})), attention);
}

TEST(Lora, DoraHasAMagnitudeForEachOutputOfLinearWeights) {
  LoraOptions options = options_for({"q_proj"});
  options.use_dora = true;
  EXPECT_EQ(lora_shapes(options),
            (std::map<std::string, Shape>{{kLayer + "self_attn.q_proj.lora_A.weight", {2, 4}},
                                          {kLayer + "self_attn.q_proj.lora_B.weight", {6, 2}},
                                          {kLayer + "self_attn.q_proj.lora_magnitude_vector", {6}}}));
  options.target_modules = {"attention", "all-experts"};
  EXPECT_THAT(testing::user_error([&] { lora_shapes(options); }), HasSubstr("DoRA of routed experts"));
}

TEST(Lora, DoraBeginsWithTheNormsOfTheWeights) {
  ParameterStore store;
  testing::add_model(store, {});
  LoraOptions options = options_for({"o_proj"});
  options.use_dora = true;
  attach_lora(store, options);
  store.allocate(Device{});
  testing::fill(store, 2);
  ThreadPool pool(1);
  Stream stream(Device{}, pool);
  Arena scratch(Device{}, "scratch");
  scratch.reserve(0);
  initialise_lora(Context(stream, scratch), store, 1);
  stream.synchronize();
  const Parameter& weight = *store.find(kLayer + "self_attn.o_proj.weight");
  const float* norms = store.find(kLayer + "self_attn.o_proj.lora_magnitude_vector")->value().whole().as<float>();
  for (int64_t o = 0; o < 4; ++o) {
    double squares = 0;
    for (int64_t i = 0; i < 6; ++i) squares += std::pow(weight.value().whole().as<float>()[o * 6 + i], 2);
    EXPECT_NEAR(norms[o], std::sqrt(squares), 1e-6) << o;
  }
}

TEST(Lora, ExcludedModulesGetNoAdapter) {
  LoraOptions options = options_for({"all-linear", "all-experts"});
  options.exclude_modules = {"o_proj", "w2"};
  std::map<std::string, Shape> expected = lora_shapes(options_for({"all-linear", "all-experts"}));
  std::erase_if(expected, [](const auto& entry) {
    return entry.first.find("o_proj") != std::string::npos || entry.first.find("down_proj") != std::string::npos;
  });
  EXPECT_EQ(lora_shapes(options), expected);
  options.exclude_modules = {"all-experts", "attention"};
  EXPECT_EQ(lora_shapes(options).size(), 2u) << "the shared MLP's up_proj";
  options.exclude_modules = {"o_proj", "no_such_proj"};
  EXPECT_THAT(testing::user_error([&] { lora_shapes(options); }), HasSubstr("the excluded module 'no_such_proj'"));
  options.exclusions_may_miss = true;
  const std::map<std::string, Shape> without_o = [&] {
    LoraOptions stated = options;
    stated.exclude_modules = {"o_proj"};
    return lora_shapes(stated);
  }();
  EXPECT_EQ(lora_shapes(options), without_o);
  options.exclude_modules = {"all-linear", "all-experts"};
  EXPECT_THAT(testing::user_error([&] { lora_shapes(options); }), HasSubstr("leaves no module"));
}

TEST(Lora, ExclusionsMayNameWhatHasNoAdapterAnyway) {
  LoraOptions options = options_for({"attention"});
  options.exclude_modules = {"mlp.gate", "embed_tokens", "up_proj"};
  EXPECT_EQ(lora_shapes(options), lora_shapes(options_for({"attention"})));
}

TEST(Lora, ExclusionsMayBeExpressionsForWholeNames) {
  LoraOptions options = options_for({"attention"});
  options.exclude_modules = {whole_name_pattern(".*\\.o_proj|q_proj")};
  const std::map<std::string, Shape> shapes = lora_shapes(options);
  EXPECT_EQ(shapes.size(), 2u);
  EXPECT_TRUE(shapes.contains(kLayer + "self_attn.q_proj.lora_A.weight")) << "q_proj alone is not its whole name";
}

TEST(Lora, ExclusionsTakeFusedExpertsOutWhole) {
  LoraOptions options = options_for({"q_proj"});
  options.target_parameters = {"experts.gate_up_proj", "experts.down_proj"};
  for (const auto& excluded : {std::vector<std::string>{"w1", "w3"}, {"gate_up_proj"}, {"*experts.*.w[13]"}}) {
    options.exclude_modules = excluded;
    const std::map<std::string, Shape> shapes = lora_shapes(options);
    EXPECT_TRUE(shapes.contains(kLayer + "mlp.experts.down_proj.lora_A"));
    EXPECT_FALSE(shapes.contains(kLayer + "mlp.experts.gate_up_proj.lora_A")) << excluded.front();
  }
  options.exclude_modules = {"w1"};
  EXPECT_THAT(testing::user_error([&] { lora_shapes(options); }), HasSubstr("it has a single adapter"));
  options.exclude_modules = {"experts.1.w2"};
  EXPECT_THAT(testing::user_error([&] { lora_shapes(options); }),
              HasSubstr("the excluded module 'experts.1.w2' matches 1 of the 3 experts"));
}

TEST(Lora, ExclusionsOfAnAdaptersFilesAreNotApplied) {
  LoraOptions options = options_for({"attention"});
  options.exclude_modules = {"q_proj", "of_a_vision_tower"};
  options.of_files = true;
  EXPECT_EQ(lora_shapes(options), lora_shapes(options_for({"attention"})));
}

TEST(Lora, GatesOfLinearAttentionAreLinearButNotAttentionAndItsRecurrenceIsNeither) {
  const auto adapted = [](const std::string& target) {
    ParameterStore store;
    const std::string layer = "model.layers.0.linear_attn.";
    store.add({layer + "in_proj_qkv.weight", {6, 4}, ParameterKind::kAttention, 0, {}}, DType::kF32);
    store.add({layer + "in_proj_z.weight", {6, 4}, ParameterKind::kAttentionGate, 0, {}}, DType::kF32);
    store.add({layer + "conv1d.weight", {6, 1, 4}, ParameterKind::kRecurrence, 0, {}}, DType::kF32);
    attach_lora(store, options_for({target}));
    std::vector<bool> result;
    for (const char* name : {"in_proj_qkv.weight", "in_proj_z.weight", "conv1d.weight"}) {
      result.push_back(!store.find(layer + name)->adapters().empty());
    }
    return result;
  };
  EXPECT_EQ(adapted("attention"), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(adapted("all-linear"), (std::vector<bool>{true, true, false}));
  EXPECT_EQ(adapted("in_proj_z"), (std::vector<bool>{false, true, false}));
  EXPECT_THAT(testing::user_error([&] { adapted("conv1d"); }), HasSubstr("conv1d"));
}

TEST(Lora, SplitExpertAdaptersHaveAPairForEachProjection) {
  const std::map<std::string, Shape> expected = {
      {kLayer + "mlp.experts.gate_proj.lora_A", {3, 2, 4}}, {kLayer + "mlp.experts.gate_proj.lora_B", {3, 5, 2}},
      {kLayer + "mlp.experts.up_proj.lora_A", {3, 2, 4}},   {kLayer + "mlp.experts.up_proj.lora_B", {3, 5, 2}},
      {kLayer + "mlp.experts.down_proj.lora_A", {3, 2, 5}}, {kLayer + "mlp.experts.down_proj.lora_B", {3, 4, 2}}};
  EXPECT_EQ(lora_shapes(options_for({"all-experts"})), expected);
  EXPECT_EQ(lora_shapes(options_for({"w1", "w2", "w3"})), expected);  // the names files use
  EXPECT_EQ(lora_shapes(options_for({"w3"})).size(), 2u);
}

TEST(Lora, SharedExpertAdaptersHaveOneAForTheFusedWeight) {
  const std::map<std::string, Shape> expected = {{kLayer + "mlp.experts.gate_up_proj.lora_A", {3, 2, 4}},
                                                 {kLayer + "mlp.experts.gate_up_proj.lora_B", {3, 10, 2}},
                                                 {kLayer + "mlp.experts.down_proj.lora_A", {3, 2, 5}},
                                                 {kLayer + "mlp.experts.down_proj.lora_B", {3, 4, 2}}};
  EXPECT_EQ(lora_shapes(options_for({"all-experts"}, ExpertLora::kShared)), expected);
  LoraOptions parameters = options_for({});
  parameters.target_parameters = {"experts.gate_up_proj", "experts.down_proj"};
  EXPECT_EQ(lora_shapes(parameters), expected);
}

/// The router's op takes the logits of its adapter through an identity, which is no part of the adapter.
TEST(Lora, ARouterIsAdaptedWhereItIsNamed) {
  const std::map<std::string, Shape> router = {{kLayer + "mlp.gate.lora_A.weight", {2, 4}},
                                               {kLayer + "mlp.gate.lora_B.weight", {3, 2}},
                                               {kLayer + "mlp.gate.lora_identity", {3, 3}}};
  EXPECT_EQ(lora_shapes(options_for({"mlp.gate"})), router);
  EXPECT_EQ(lora_shapes(options_for({"block_sparse_moe.gate"})), router);
  LoraOptions parameters = options_for({});
  parameters.target_parameters = {"gate.weight"};
  EXPECT_EQ(lora_shapes(parameters), router);
  for (const char* many : {"*.gate", "re:mlp\\.gate$"}) {
    EXPECT_THAT(testing::user_error([&] { lora_shapes(options_for({many})); }), HasSubstr("matches no linear weight"));
  }
  LoraOptions dora = options_for({"mlp.gate"});
  dora.use_dora = true;
  EXPECT_THAT(testing::user_error([&] { lora_shapes(dora); }), HasSubstr("DoRA of routers"));
  ParameterStore store;
  testing::add_model(store, {});
  attach_lora(store, parameters);
  EXPECT_FALSE(store.find(kLayer + "mlp.gate.lora_identity")->trainable());
}

TEST(Lora, TargetsThatSelectNothingOrAPartAreRefused) {
  const auto error = [](const LoraOptions& options) { return testing::user_error([&] { lora_shapes(options); }); };
  EXPECT_THAT(error(options_for({"q_porj"})), HasSubstr("Did you mean 'q_proj'"));
  EXPECT_THAT(error(options_for({"norm"})), HasSubstr("matches no linear weight"));  // exists, but is not linear
  EXPECT_THAT(error(options_for({"*.experts.1.w1"})), HasSubstr("1 of the 3 experts"));
  EXPECT_THAT(error(options_for({"w1"}, ExpertLora::kShared)), HasSubstr("only a part"));
  LoraOptions parameters = options_for({});
  parameters.target_parameters = {"self_attn.q_proj"};
  EXPECT_THAT(error(parameters), HasSubstr("lora_target_parameters"));
}

TEST(Lora, DropoutOnSharedExpertAdaptersIsRefused) {
  LoraOptions options = options_for({"all-experts"}, ExpertLora::kShared);
  options.dropout = 0.1;
  EXPECT_THAT(testing::user_error([&] { lora_shapes(options); }), HasSubstr("lora_dropout"));
  options.expert_lora = ExpertLora::kSplit;
  EXPECT_NO_THROW(lora_shapes(options));
}

TEST(Lora, OnlyAdaptersAreTrainedAndTheyKnowTheirPlace) {
  ParameterStore store;
  testing::add_model(store, {.dtype = DType::kBF16});
  LoraOptions options = options_for({"all-experts", "attention"});
  options.use_rslora = true;
  attach_lora(store, options);
  for (const Parameter& p : store.all()) EXPECT_EQ(p.trainable(), p.spec().kind == ParameterKind::kLora) << p.name();
  for (const Parameter* p : store.trainable()) EXPECT_EQ(p->value().dtype(), DType::kF32);
  const auto& adapters = store.find(kLayer + "mlp.experts.gate_up_proj")->adapters();
  ASSERT_EQ(adapters.size(), 2u);
  EXPECT_EQ(adapters[0]->place().out_begin, 0);
  EXPECT_EQ(adapters[1]->place().out_begin, 5);
  EXPECT_EQ(adapters[1]->place().out_count, 5);
  const Adapter &gate = adapters[0]->low_rank()->factors, &up = adapters[1]->low_rank()->factors;
  EXPECT_FLOAT_EQ(gate.scaling, static_cast<float>(8 / std::sqrt(2.0)));
  EXPECT_NE(gate.stream_id, up.stream_id);
}

TEST(Lora, InitialValuesFollowFromSeedAndNameAlone) {
  const auto values = [](std::vector<std::string> targets, uint64_t seed, const std::string& name) {
    ParameterStore store;
    testing::add_model(store, {});
    attach_lora(store, options_for(std::move(targets)));
    store.allocate(Device{});
    ThreadPool pool(1);
    Stream stream(Device{}, pool);
    Arena scratch(Device{}, "scratch");
    scratch.reserve(0);
    initialise_lora(Context(stream, scratch), store, seed);
    stream.synchronize();
    const Tensor& value = store.find(name)->value().whole();
    return std::vector<float>(value.as<float>(), value.as<float>() + value.numel());
  };
  const std::string a = kLayer + "self_attn.o_proj.lora_A.weight", b = kLayer + "self_attn.o_proj.lora_B.weight";
  const std::vector<float> first = values({"attention"}, 1, a);
  EXPECT_EQ(values({"o_proj"}, 1, a), first);  // whatever else is adapted
  EXPECT_NE(values({"attention"}, 2, a), first);
  float largest = 0;
  for (float v : first) largest = std::max(largest, std::abs(v));
  EXPECT_LE(largest, std::sqrt(1.0f / 6));
  EXPECT_GT(largest, 0.0f);
  EXPECT_EQ(values({"attention"}, 1, b), std::vector<float>(8, 0.0f));
}

}  // namespace
}  // namespace hone
