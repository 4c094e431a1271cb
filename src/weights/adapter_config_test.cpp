// Tests adapters with different ranks and alphas, on some of the layers, and with weights saved in full.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "core/text/json.h"
#include "params/adapter.h"
#include "params/store_testing.h"
#include "weights/adapter.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

/// Adds two layers of attention and experts, an embedding, and a head unless it is tied.
void add_layers(ParameterStore& store, bool tied) {
  store.add({"model.embed_tokens.weight", {7, 4}, ParameterKind::kEmbedding, -1, {}}, DType::kF32);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string name = "model.layers." + std::to_string(layer) + ".self_attn.";
    store.add({name + "q_proj.weight", {6, 4}, ParameterKind::kAttention, layer, {}}, DType::kF32);
    store.add({name + "v_proj.weight", {4, 6}, ParameterKind::kAttention, layer, {}}, DType::kF32);
    testing::add_experts(store, {}, layer);
  }
  store.add({"model.norm.weight", {4}, ParameterKind::kNorm, -1, {}}, DType::kF32);
  if (!tied) store.add({"lm_head.weight", {7, 4}, ParameterKind::kHead, -1, {}}, DType::kF32);
}

class AdapterFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / ("hone_adapter_config_" + std::to_string(getpid()));
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  void make(ParameterStore& store, const LoraOptions& lora, const std::set<ParameterKind>& whole = {}) const {
    add_layers(store, tied_);
    attach_lora(store, lora);
    for (Parameter& p : store.all()) {
      if (whole.contains(p.spec().kind)) p.set_trainable(true);
    }
    store.allocate(Device{});
    testing::fill(store, 3);
  }
  Json config() const {
    std::ifstream file(directory_ / "adapter_config.json");
    return Json::parse(file);
  }
  /// Base weights of another seed after merging the adapter that a fresh model reads from the folder.
  std::vector<float> loaded() const {
    ParameterStore store;
    add_layers(store, tied_);
    const AdapterDescription description = describe_adapter(directory_, store);
    attach_lora(store, description.lora);
    for (Parameter& p : store.all()) {
      if (description.whole.contains(p.spec().kind)) p.set_trainable(true);
    }
    store.allocate(Device{});
    testing::fill(store, 3);
    for (Parameter& p : store.all()) {
      if (description.whole.contains(p.spec().kind))
        write_values(p, 0, std::vector<float>(28, 9).data(), p.shape().numel());
    }
    load_adapter(directory_, store);
    return testing::merged(store);
  }

  fs::path directory_;
  bool tied_ = false;
};

LoraOptions with_patterns(ExpertLora experts) {
  LoraOptions lora{.r = 3,
                   .alpha = 6,
                   .expert_lora = experts,
                   .target_modules = {"attention", "all-experts"},
                   .target_parameters = {}};
  lora.rank_pattern = {{"layers\\.0\\..*q_proj", 1}, {"v_proj", 2}, {"all-experts", 4}};
  lora.alpha_pattern = {{"q_proj", 5}, {"layers.1.*experts.*", 2.5}};
  if (experts == ExpertLora::kSplit) lora.rank_pattern.insert(lora.rank_pattern.begin(), {"w1", 1});
  return lora;
}

TEST_F(AdapterFiles, PatternsSurviveEveryParameterisationAndExport) {
  for (const ExpertLora trained : {ExpertLora::kSplit, ExpertLora::kShared}) {
    for (const AdapterLayout layout : {AdapterLayout::kSplit, AdapterLayout::kTargetParameters}) {
      for (const bool rslora : {false, true}) {
        SCOPED_TRACE(::testing::Message() << static_cast<int>(trained) << static_cast<int>(layout) << rslora);
        LoraOptions lora = with_patterns(trained);
        lora.use_rslora = rslora;
        ParameterStore store;
        make(store, lora);
        save_adapter(directory_, store, {.lora = lora, .layout = layout, .base_model = ""});
        const std::vector<float> got = loaded(), want = testing::merged(store);
        ASSERT_EQ(got.size(), want.size());
        // A fused gate_up has one scaling: that of the other part is folded into B, which adds a rounding.
        for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * (1 + std::abs(want[i]))) << i;
      }
    }
  }
}

TEST_F(AdapterFiles, PatternsAreWrittenByLastPartWhereTheyCanBe) {
  ParameterStore store;
  const LoraOptions lora = with_patterns(ExpertLora::kSplit);
  make(store, lora);
  save_adapter(directory_, store, {.lora = lora, .layout = AdapterLayout::kSplit, .base_model = ""});
  const Json written = config();
  EXPECT_EQ(written["r"], 3);
  EXPECT_EQ(written["lora_alpha"], 6);
  EXPECT_EQ(written["rank_pattern"],
            Json({{"model.layers.0.self_attn.q_proj", 1}, {"v_proj", 2}, {"w1", 1}, {"w3", 4}, {"w2", 4}}));
  const std::string experts = "model.layers.1.block_sparse_moe.experts\\.\\d+.";
  EXPECT_EQ(written["alpha_pattern"],
            Json({{"q_proj", 5}, {experts + "w1", 2.5}, {experts + "w3", 2.5}, {experts + "w2", 2.5}}));
  EXPECT_EQ(written["target_modules"], Json({"q_proj", "v_proj", "w1", "w2", "w3"}));
  EXPECT_TRUE(written["layers_to_transform"].is_null());
}

TEST_F(AdapterFiles, ARunWithoutPatternsWritesNone) {
  LoraOptions lora = with_patterns(ExpertLora::kSplit);
  lora.rank_pattern = lora.alpha_pattern = {};
  ParameterStore store;
  make(store, lora);
  save_adapter(directory_, store, {.lora = lora, .layout = AdapterLayout::kTargetParameters, .base_model = ""});
  EXPECT_EQ(config()["r"], 6);
  EXPECT_EQ(config()["rank_pattern"], Json::object());
  EXPECT_EQ(config()["alpha_pattern"], Json::object());
}

TEST_F(AdapterFiles, AdaptersOfSomeLayersSayWhich) {
  LoraOptions lora = with_patterns(ExpertLora::kShared);
  lora.layers = {1};
  lora.rank_pattern = {{"v_proj", 2}};
  ParameterStore store;
  make(store, lora);
  save_adapter(directory_, store, {.lora = lora, .layout = AdapterLayout::kTargetParameters, .base_model = ""});
  EXPECT_EQ(config()["layers_to_transform"], Json::array({1}));
  EXPECT_EQ(config()["target_modules"], Json({"q_proj", "v_proj"}));
  // PEFT applies target_parameters to every layer.
  EXPECT_EQ(config()["target_parameters"],
            Json({"model.layers.1.mlp.experts.down_proj", "model.layers.1.mlp.experts.gate_up_proj"}));
  EXPECT_EQ(loaded(), testing::merged(store));
  // A module that is adapted in one layer only needs its full name.
  lora.target_modules = {"*layers.0.*q_proj", "*layers.1.*v_proj"};
  lora.layers = {};
  lora.alpha_pattern = {};
  ParameterStore mixed;
  make(mixed, lora);
  save_adapter(directory_, mixed, {.lora = lora, .base_model = ""});
  EXPECT_EQ(config()["target_modules"], Json({"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj"}));
}

TEST_F(AdapterFiles, ExcludedModulesAreWrittenAsPeftHasThem) {
  const std::string experts = "model\\.layers\\.0\\.mlp\\.experts(\\..*)?|model\\.layers\\.1\\.mlp\\.experts(\\..*)?";
  const std::vector<std::pair<std::vector<std::string>, Json>> cases = {
      {{}, nullptr},
      {{"v_proj", "layers.0.self_attn.q_proj"}, {"v_proj", "layers.0.self_attn.q_proj"}},
      {{"re:^(?:.*\\.v_proj)$"}, ".*\\.v_proj"},
      {{"re:1.*v_pr"}, ".*(?:1.*v_pr).*"},
      {{"*layers.[!1].*v_proj"}, ".*layers\\.[^1]\\..*v_proj"},
      {{"all-experts", "q_proj"}, "(?:" + experts + ")|(?:(.*\\.)?q_proj)"}};
  for (const auto& [patterns, expected] : cases) {
    LoraOptions lora{.r = 2, .target_modules = {"attention", "all-experts"}, .target_parameters = {}};
    lora.exclude_modules = patterns;
    ParameterStore store;
    make(store, lora);
    save_adapter(directory_, store, {.lora = lora, .base_model = ""});
    const Json written = config();
    EXPECT_EQ(written.contains("exclude_modules") ? written["exclude_modules"] : Json(), expected);
    // A run that resumes from these files writes the same files.
    ParameterStore again;
    add_layers(again, tied_);
    const AdapterDescription description = describe_adapter(directory_, again);
    attach_lora(again, description.lora);
    again.allocate(Device{});
    load_adapter(directory_, again);
    save_adapter(directory_, again, {.lora = description.lora, .base_model = ""});
    EXPECT_EQ(config(), written);
  }
}

TEST_F(AdapterFiles, ExcludedModulesOfAnotherFormAreRefused) {
  ParameterStore store;
  const LoraOptions lora{.r = 2, .target_modules = {"attention"}, .target_parameters = {}};
  make(store, lora);
  save_adapter(directory_, store, {.lora = lora, .base_model = ""});
  for (const Json& said : {Json(3), Json({{"a", 1}}), Json({"a", 1})}) {
    Json changed = config();
    changed["exclude_modules"] = said;
    std::ofstream(directory_ / "adapter_config.json") << changed.dump();
    EXPECT_THAT(testing::user_error([&] { describe_adapter(directory_, store); }), HasSubstr("exclude_modules"));
  }
}

TEST_F(AdapterFiles, EmbeddingAndHeadAreSavedWhole) {
  LoraOptions lora = with_patterns(ExpertLora::kShared);
  ParameterStore store;
  make(store, lora, {ParameterKind::kEmbedding, ParameterKind::kHead, ParameterKind::kNorm});
  save_adapter(directory_, store, {.lora = lora, .layout = AdapterLayout::kTargetParameters, .base_model = ""});
  EXPECT_EQ(config()["modules_to_save"], Json({"embed_tokens", "lm_head", "model.norm"}));
  EXPECT_EQ(loaded(), testing::merged(store));
}

TEST_F(AdapterFiles, ATiedEmbeddingIsWrittenUnderBothNamesAndReadIfTheyAgree) {
  tied_ = true;
  LoraOptions lora = with_patterns(ExpertLora::kShared);
  ParameterStore store;
  make(store, lora, {ParameterKind::kEmbedding});
  save_adapter(directory_, store, {.lora = lora, .layout = AdapterLayout::kTargetParameters, .base_model = ""});
  EXPECT_EQ(config()["modules_to_save"], Json({"embed_tokens", "lm_head"}));
  const SafetensorsFile file(directory_ / "adapter_model.safetensors");
  EXPECT_EQ(file.read_floats("base_model.model.lm_head.weight"),
            file.read_floats("base_model.model.model.embed_tokens.weight"));
  EXPECT_EQ(loaded(), testing::merged(store));
  // PEFT trains them separately if only one is listed.
  tied_ = false;
  ParameterStore apart;
  make(apart, lora, {ParameterKind::kEmbedding});
  save_adapter(directory_, apart, {.lora = lora, .layout = AdapterLayout::kTargetParameters, .base_model = ""});
  tied_ = true;
  EXPECT_THAT(testing::user_error([&] { loaded(); }), HasSubstr("which the model ties"));
}

}  // namespace
}  // namespace hone
