#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <numeric>

#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "params/adapter.h"
#include "params/parameter_store.h"
#include "params/store_testing.h"
#include "weights/adapter.h"
#include "weights/adapter_layout.h"
#include "weights/checkpoint.h"
#include "weights/kt_manifest.h"
#include "weights/model_folder.h"
#include "weights/safetensors.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr const char* kExperts = "base_model.model.model.layers.0.mlp.experts";

LoraOptions lora_of(ExpertLora experts) {
  return {.r = 2,
          .alpha = 6,
          .expert_lora = experts,
          .target_modules = {"attention", "all-experts"},
          .target_parameters = {}};
}

/// Rounds the adapters to bfloat16, which kt's experts have in files.
void round_adapters(ParameterStore& store) {
  for (Parameter& p : store.all()) {
    if (p.spec().kind != ParameterKind::kLora) continue;
    float* values = p.value().whole().as<float>();
    for (int64_t i = 0; i < p.shape().numel(); ++i) values[i] = static_cast<float>(BFloat16(values[i]));
  }
}

class Adapters : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / ("hone_adapter_" + std::to_string(getpid()));
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  void make(ParameterStore& store, const LoraOptions& lora) const {
    testing::add_model(store, sizes_);
    attach_lora(store, lora);
    store.allocate(Device{});
    testing::fill(store, 3);
  }
  /// The base weights after merging the adapter that a fresh model reads from the folder.
  std::vector<float> merged_after_loading() const {
    ParameterStore store;
    testing::add_model(store, sizes_);
    attach_lora(store, describe_adapter(directory_, store).lora);
    store.allocate(Device{});
    testing::fill(store, 3);
    load_adapter(directory_, store);
    return testing::merged(store);
  }
  void edit_config(const std::string& key, const Json& value) const {
    std::ifstream file(directory_ / "adapter_config.json");
    Json json = Json::parse(file);
    json[key] = value;
    write_text_file(directory_ / "adapter_config.json", json.dump());
  }
  std::string describe_error() const {
    ParameterStore store;
    testing::add_model(store, {});
    return testing::user_error([&] { describe_adapter(directory_, store); });
  }

  fs::path directory_;
  testing::StoreSizes sizes_;
};

TEST_F(Adapters, EveryParameterisationAndExportGivesTheSameWeights) {
  for (const ExpertLora trained : {ExpertLora::kSplit, ExpertLora::kShared}) {
    for (const AdapterLayout layout : {AdapterLayout::kSplit, AdapterLayout::kTargetParameters, AdapterLayout::kKt,
                                       AdapterLayout::kSglang, AdapterLayout::kAsTrained}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(trained) << " " << static_cast<int>(layout));
      ParameterStore store;
      make(store, lora_of(trained));
      if (layout == AdapterLayout::kKt) round_adapters(store);
      save_adapter(directory_, store, {.lora = lora_of(trained), .layout = layout, .base_model = "base"});
      const std::vector<float> loaded = merged_after_loading(), expected = testing::merged(store);
      // Added zeros and a copied A do not change sums; the scalings 6/2 and 12/4 are equal: bitwise equal results.
      EXPECT_EQ(loaded, expected);
    }
  }
}

TEST_F(Adapters, OfExpertsWithoutAGateGiveTheSameWeights) {
  sizes_.gated = false;
  for (const ExpertLora trained : {ExpertLora::kSplit, ExpertLora::kShared}) {
    for (const AdapterLayout layout :
         {AdapterLayout::kSplit, AdapterLayout::kTargetParameters, AdapterLayout::kAsTrained}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(trained) << " " << static_cast<int>(layout));
      ParameterStore store;
      make(store, lora_of(trained));
      save_adapter(directory_, store, {.lora = lora_of(trained), .layout = layout, .base_model = "base"});
      EXPECT_EQ(merged_after_loading(), testing::merged(store));
      std::ifstream config(directory_ / "adapter_config.json");
      EXPECT_EQ(Json::parse(config)["r"], 2) << "up is not joined with a gate";
    }
    ParameterStore store;
    make(store, lora_of(trained));
    for (const AdapterLayout layout : {AdapterLayout::kKt, AdapterLayout::kSglang}) {
      EXPECT_THAT(testing::user_error([&] { require_layout(store, layout); }), HasSubstr("without a gate"));
    }
  }
}

/// up and down then have the same shape.
TEST_F(Adapters, OfSquareExpertsWithoutAGateAreToldApart) {
  sizes_.gated = false;
  sizes_.intermediate = sizes_.hidden;
  LoraOptions lora = lora_of(ExpertLora::kShared);
  ParameterStore both;
  make(both, lora);
  save_adapter(directory_, both, {.lora = lora, .layout = AdapterLayout::kTargetParameters, .base_model = ""});
  EXPECT_EQ(merged_after_loading(), testing::merged(both));
  lora.target_modules = {"attention"};
  lora.target_parameters = {"experts.up_proj"};
  ParameterStore one;
  make(one, lora);
  save_adapter(directory_, one, {.lora = lora, .layout = AdapterLayout::kTargetParameters, .base_model = ""});
  EXPECT_THAT(testing::user_error([&] { merged_after_loading(); }), HasSubstr("fits two weights"));
}

LoraOptions dora() {
  LoraOptions lora = lora_of(ExpertLora::kSplit);
  lora.target_modules = {"attention"};
  lora.use_dora = true;
  return lora;
}

TEST_F(Adapters, DoraIsWrittenAndReadAsPeftNamesIt) {
  for (const AdapterLayout layout :
       {AdapterLayout::kSplit, AdapterLayout::kTargetParameters, AdapterLayout::kAsTrained}) {
    ParameterStore store;
    make(store, dora());
    save_adapter(directory_, store, {.lora = dora(), .layout = layout, .base_model = ""});
    const SafetensorsFile file(directory_ / "adapter_model.safetensors");
    EXPECT_EQ(file.at("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector").shape,
              std::vector<int64_t>{6});
    EXPECT_EQ(read_json_if_there(directory_ / "adapter_config.json")->at("use_dora"), true);
    EXPECT_EQ(merged_after_loading(), testing::merged(store));
  }
  ParameterStore store;
  make(store, dora());
  for (const AdapterLayout layout : {AdapterLayout::kKt, AdapterLayout::kSglang}) {
    EXPECT_THAT(testing::user_error([&] { require_layout(store, layout); }), HasSubstr("DoRA"));
  }
}

TEST_F(Adapters, MergingDoraGivesRowsItsMagnitudes) {
  ParameterStore store;
  make(store, dora());
  Parameter& weight = *store.find("model.layers.0.self_attn.q_proj.weight");
  const Parameter& magnitude = *store.find("model.layers.0.self_attn.q_proj.lora_magnitude_vector");
  merge_adapters(store);
  for (int64_t o = 0; o < 6; ++o) {
    double squares = 0;
    for (int64_t i = 0; i < 4; ++i) squares += std::pow(weight.value().whole().as<float>()[o * 4 + i], 2);
    EXPECT_NEAR(std::sqrt(squares), std::abs(magnitude.value().whole().as<float>()[o]), 1e-5) << o;
  }
}

/// gate and up shared, down split (and vice versa): one rank for both in every layout.
TEST_F(Adapters, SplitAndSharedAdaptersOfOneModelAreWrittenInEveryLayout) {
  for (const char* shared : {"experts.gate_up_proj", "experts.down_proj"}) {
    for (const AdapterLayout layout : {AdapterLayout::kSplit, AdapterLayout::kTargetParameters, AdapterLayout::kKt,
                                       AdapterLayout::kSglang, AdapterLayout::kAsTrained}) {
      SCOPED_TRACE(::testing::Message() << shared << " " << static_cast<int>(layout));
      LoraOptions lora = lora_of(ExpertLora::kSplit);
      lora.target_parameters = {std::string("*") + shared};
      ParameterStore store;
      make(store, lora);
      if (layout == AdapterLayout::kKt) round_adapters(store);
      save_adapter(directory_, store, {.lora = lora, .layout = layout, .base_model = ""});
      EXPECT_EQ(merged_after_loading(), testing::merged(store));
    }
  }
}

/// Writes the tensors of a file again, in a dtype and under other names.
template <class Rename>
void rewrite(const fs::path& path, DType dtype, const Rename& rename) {
  std::vector<SafetensorsWriter::Announced> announced;
  std::vector<std::vector<float>> values;
  {
    const SafetensorsFile file(path);
    for (const SafetensorsEntry& entry : file.entries()) {
      announced.push_back({rename(entry.name), dtype, entry.shape});
      values.push_back(file.read_floats(entry.name));
    }
  }
  SafetensorsWriter writer(path, announced);
  for (const std::vector<float>& tensor : values) {
    writer.write_floats(dtype, tensor.data(), static_cast<int64_t>(tensor.size()));
  }
  writer.finish();
}

TEST_F(Adapters, FilesMayHoldThemInSixteenBits) {
  const LoraOptions lora = lora_of(ExpertLora::kSplit);
  ParameterStore store;
  make(store, lora);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    save_adapter(directory_, store, {.lora = lora, .base_model = ""});
    rewrite(directory_ / "adapter_model.safetensors", dtype, [](const std::string& name) { return name; });
    ParameterStore loaded;
    make(loaded, lora);
    load_adapter(directory_, loaded);
    for (Parameter& p : store.all()) {
      if (p.spec().kind != ParameterKind::kLora) continue;
      const float *exact = p.value().whole().as<float>(), *rounded = loaded.find(p.name())->value().whole().as<float>();
      for (int64_t i = 0; i < p.shape().numel(); ++i) {
        const float expected = dtype == DType::kBF16 ? float(BFloat16(exact[i])) : float(Float16(exact[i]));
        ASSERT_EQ(rounded[i], expected) << p.name();
      }
    }
  }
}

TEST_F(Adapters, KtHasAllExpertsOfAProjectionInOneTensor) {
  LoraOptions lora = lora_of(ExpertLora::kSplit);
  lora.target_modules = {"attention", "down_proj"};
  ParameterStore store;
  make(store, lora);
  round_adapters(store);
  save_adapter(directory_, store, {.lora = lora, .layout = AdapterLayout::kKt, .base_model = ""});
  const SafetensorsFile file(directory_ / "fused_expert_lora.safetensors");
  ASSERT_EQ(file.entries().size(), 6u);
  for (const SafetensorsEntry& entry : file.entries()) EXPECT_EQ(entry.dtype, DType::kBF16) << entry.name;
  EXPECT_EQ(file.at("layers.0.experts.gate_lora_a").shape, (std::vector<int64_t>{3, 2, 4}));
  EXPECT_EQ(file.at("layers.0.experts.down_lora_a").shape, (std::vector<int64_t>{3, 2, 5}));
  EXPECT_EQ(file.at("layers.0.experts.down_lora_b").shape, (std::vector<int64_t>{3, 4, 2}));
  // Experts without an adapter add zeros.
  for (const float value : file.read_floats("layers.0.experts.gate_lora_b")) EXPECT_EQ(value, 0.0f);
  const SafetensorsFile others(directory_ / "adapter_model.safetensors");
  for (const SafetensorsEntry& entry : others.entries()) {
    EXPECT_EQ(entry.name.find("experts"), std::string::npos) << entry.name;
  }
  EXPECT_EQ(merged_after_loading(), testing::merged(store));
  // Saving in another layout removes its files.
  save_adapter(directory_, store, {.lora = lora, .layout = AdapterLayout::kSplit, .base_model = ""});
  EXPECT_FALSE(fs::exists(directory_ / "fused_expert_lora.safetensors"));
}

TEST_F(Adapters, KtHasTheExpertsOfEveryLayer) {
  const LoraOptions lora{.r = 2, .alpha = 6, .target_modules = {"all-experts"}, .target_parameters = {}, .layers = {1}};
  const auto two_layers = [&](ParameterStore& store, const LoraOptions& options) {
    testing::add_model(store, sizes_);
    testing::add_experts(store, sizes_, 1);
    attach_lora(store, options);
    store.allocate(Device{});
    testing::fill(store, 3);
  };
  ParameterStore store, again;
  two_layers(store, lora);
  round_adapters(store);
  save_adapter(directory_, store, {.lora = lora, .layout = AdapterLayout::kKt, .base_model = ""});
  const SafetensorsFile file(directory_ / "fused_expert_lora.safetensors");
  ASSERT_EQ(file.entries().size(), 12u);
  for (const float value : file.read_floats("layers.0.experts.up_lora_a")) EXPECT_EQ(value, 0.0f);
  two_layers(again, [&] {
    ParameterStore model;
    testing::add_model(model, sizes_);
    testing::add_experts(model, sizes_, 1);
    return describe_adapter(directory_, model).lora;
  }());
  load_adapter(directory_, again);
  EXPECT_EQ(testing::merged(again), testing::merged(store));
}

/// An adapter in KTransformers' layout, in `folder` with its manifest.
class KtManifest : public Adapters {
 protected:
  void SetUp() override {
    Adapters::SetUp();
    folder_ = directory_ / "kt";
    write(AdapterLayout::kKt);
  }
  void write(AdapterLayout layout) const {
    ParameterStore store;
    make(store, lora_of(ExpertLora::kSplit));
    write_directory(folder_, [&](const fs::path& temporary, FileChecksums&) {
      save_adapter(temporary, store, {.lora = lora_of(ExpertLora::kSplit), .layout = layout, .base_model = "base"});
    });
  }
  Json manifest() const { return read_json(folder_ / kKtManifestName); }
  /// The error of reading the folder, after `edit` of its manifest.
  std::string error_after(const std::function<void(Json&)>& edit) const {
    Json json = manifest();
    const std::string before = json.dump();
    edit(json);
    write_text_file(folder_ / kKtManifestName, json.dump());
    const std::string error = this->error();
    write_text_file(folder_ / kKtManifestName, before);
    return error;
  }
  std::string error() const {
    ParameterStore store;
    testing::add_model(store, {});
    return testing::user_error([&] { describe_adapter(folder_, store); });
  }

  fs::path folder_;
};

TEST_F(KtManifest, StatesWhatKTransformersCompares) {
  const Json json = manifest();
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["status"], "ready");
  EXPECT_EQ(json["expert_weight_format"], "bf16");
  EXPECT_EQ(json["base"], (Json{{"model_name_or_path", "base"}}));
  EXPECT_EQ(json["lora"], (Json{{"rank", 2}, {"alpha", 6.0}}));
  ASSERT_EQ(json["artifacts"].size(), 3u);
  for (const auto& [name, record] : json["artifacts"].items()) {
    EXPECT_EQ(record["size"], fs::file_size(folder_ / name)) << name;
    EXPECT_EQ(record["sha256"].get<std::string>().size(), 64u) << name;
  }
  const Json& experts = json["artifacts"]["fused_expert_lora.safetensors"];
  EXPECT_EQ(experts["tensor_count"], 6);
  EXPECT_EQ(experts["tensors"]["layers.0.experts.down_lora_b"], (Json{{"shape", {3, 4, 2}}, {"dtype", "BF16"}}));
}

/// FIPS 180-4's digest of "abc".
TEST_F(KtManifest, DigestsAreSha256) {
  write_text_file(folder_ / "abc", "abc");
  const auto record = [](const char* digest) { return Json{{"size", 3}, {"sha256", digest}}; };
  const std::string right = error_after([&](Json& json) {
    json["artifacts"]["abc"] = record("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  });
  EXPECT_THAT(right, ::testing::Not(HasSubstr("abc")));
  const std::string wrong = error_after([&](Json& json) {
    json["artifacts"]["abc"] = record("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ae");
  });
  EXPECT_THAT(wrong, HasSubstr("abc has the SHA-256 ba7816bf"));
}

TEST_F(KtManifest, DamageIsNamed) {
  EXPECT_EQ(error(), "");
  const auto of_experts = [](Json& json) -> Json& { return json["artifacts"]["fused_expert_lora.safetensors"]; };
  EXPECT_THAT(error_after([&](Json& json) { of_experts(json)["sha256"] = std::string(64, '0'); }),
              HasSubstr("fused_expert_lora.safetensors has the SHA-256"));
  EXPECT_THAT(error_after([&](Json& json) { of_experts(json)["size"] = 5; }), HasSubstr("bytes, not 5"));
  EXPECT_THAT(error_after([&](Json& json) { of_experts(json).erase("sha256"); }), HasSubstr("no size and sha256"));
  EXPECT_THAT(error_after([&](Json& json) { json["artifacts"].erase("adapter_config.json"); }),
              HasSubstr("does not list adapter_config.json"));
  EXPECT_THAT(error_after([&](Json& json) { json["artifacts"]["../base"] = of_experts(json); }),
              HasSubstr("which is not in this folder"));
  EXPECT_THAT(error_after([](Json& json) { json["status"] = "writing"; }), HasSubstr("status \"writing\""));
  EXPECT_THAT(error_after([](Json& json) { json["version"] = 2; }), HasSubstr("version 2"));
  EXPECT_THAT(error_after([](Json& json) { json = Json::array(); }), HasSubstr("not a JSON object"));
  fs::remove(folder_ / "fused_expert_lora.safetensors");
  EXPECT_THAT(error(), HasSubstr("fused_expert_lora.safetensors is missing"));
}

TEST_F(KtManifest, IsOfKtOnly) {
  write(AdapterLayout::kSglang);
  EXPECT_FALSE(fs::exists(folder_ / kKtManifestName));
  EXPECT_EQ(error(), "");
}

/// KTransformers and its converter for SGLang name layers so whatever the model's files call them.
TEST_F(Adapters, ServersNamesAreReadWithoutTheModelsPrefix) {
  ParameterStore store, again;
  const auto add = [](ParameterStore& to) {
    FileLayout gate_up, down;
    for (int64_t e = 0; e < 2; ++e) {
      const std::string file = fmt::format("model.language_model.layers.3.mlp.experts.{}.", e);
      gate_up.push_back({file + "gate_proj.weight", {5, 4}, 2 * e * 20});
      gate_up.push_back({file + "up_proj.weight", {5, 4}, (2 * e + 1) * 20});
      down.push_back({file + "down_proj.weight", {4, 5}, e * 20});
    }
    const std::string own = "model.language_model.layers.3.mlp.experts.";
    to.add({own + "gate_up_proj", {2, 10, 4}, ParameterKind::kExpertsGateUp, 3, {gate_up}}, DType::kF32);
    to.add({own + "down_proj", {2, 4, 5}, ParameterKind::kExpertsDown, 3, {down}}, DType::kF32);
  };
  const auto fill = [](ParameterStore& of, const LoraOptions& lora) {
    attach_lora(of, lora);
    of.allocate(Device{});
    testing::fill(of, 3);
  };
  const LoraOptions lora{.r = 2, .alpha = 6, .target_modules = {"all-experts"}, .target_parameters = {}};
  add(store);
  fill(store, lora);
  save_adapter(directory_, store, {.lora = lora, .layout = AdapterLayout::kSglang, .base_model = ""});
  EXPECT_TRUE(SafetensorsFile(directory_ / "adapter_model.safetensors")
                  .find("model.layers.3.mlp.experts.1.up_proj.lora_B.weight"));
  add(again);
  fill(again, describe_adapter(directory_, again).lora);
  load_adapter(directory_, again);
  EXPECT_EQ(testing::merged(again), testing::merged(store));
}

/// KTransformers' injected modules keep what they replaced in orig_module, which PEFT's names then hold.
TEST_F(Adapters, NamesOfReplacedModulesAreReadAsTheirOwn) {
  const LoraOptions lora{.r = 2, .alpha = 6, .target_modules = {"attention"}, .target_parameters = {}};
  ParameterStore store;
  make(store, lora);
  save_adapter(directory_, store, {.lora = lora, .base_model = ""});
  rewrite(directory_ / "adapter_model.safetensors", DType::kF32,
          [](std::string name) { return name.insert(name.find(".lora_"), ".orig_module"); });
  EXPECT_EQ(merged_after_loading(), testing::merged(store));
}

TEST_F(Adapters, SglangNamesExpertsAloneAndWithoutAPrefix) {
  ParameterStore store;
  make(store, lora_of(ExpertLora::kShared));
  save_adapter(directory_, store,
               {.lora = lora_of(ExpertLora::kShared), .layout = AdapterLayout::kSglang, .base_model = ""});
  const SafetensorsFile file(directory_ / "adapter_model.safetensors");
  EXPECT_EQ(file.at("model.layers.0.mlp.experts.2.up_proj.lora_B.weight").shape, (std::vector<int64_t>{5, 2}));
  for (const SafetensorsEntry& entry : file.entries()) EXPECT_TRUE(entry.name.starts_with("model.")) << entry.name;
  std::ifstream config(directory_ / "adapter_config.json");
  const Json targets = Json::parse(config)["target_modules"];
  for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
    EXPECT_NE(std::find(targets.begin(), targets.end(), name), targets.end()) << name;
  }
}

TEST_F(Adapters, ServersGetRankStabilisedScalingAsAnAlpha) {
  LoraOptions lora = lora_of(ExpertLora::kSplit);
  lora.use_rslora = true;
  lora.r = 4;  // √r is exact
  ParameterStore store;
  make(store, lora);
  save_adapter(directory_, store, {.lora = lora, .layout = AdapterLayout::kSglang, .base_model = ""});
  std::ifstream file(directory_ / "adapter_config.json");
  const Json config = Json::parse(file);
  EXPECT_EQ(config["use_rslora"], false);
  EXPECT_EQ(config["lora_alpha"], 12.0);  // 12 / 4 = 6 / √4
  EXPECT_EQ(merged_after_loading(), testing::merged(store));
}

TEST_F(Adapters, ServersHaveNoPlaceForARouter) {
  ParameterStore store;
  make(store, lora_of(ExpertLora::kSplit));
  store.find("model.layers.0.mlp.gate.weight")->set_trainable(true);
  for (const AdapterLayout layout : {AdapterLayout::kKt, AdapterLayout::kSglang}) {
    EXPECT_THAT(testing::user_error([&] {
                  save_adapter(directory_, store,
                               {.lora = lora_of(ExpertLora::kSplit), .layout = layout, .base_model = ""});
                }),
                HasSubstr("trains the router too"));
  }
}

TEST_F(Adapters, DamagedKtFilesAreNamed) {
  const LoraOptions lora = lora_of(ExpertLora::kSplit);
  ParameterStore store;
  make(store, lora);
  save_adapter(directory_, store, {.lora = lora, .layout = AdapterLayout::kKt, .base_model = ""});
  const fs::path path = directory_ / "fused_expert_lora.safetensors";
  const auto write = [&](const std::string& name, std::vector<int64_t> dims) {
    SafetensorsWriter writer(path, {{name, DType::kF32, dims}});
    const std::vector<float> zeros(static_cast<size_t>(dims[0] * dims[1] * dims[2]));
    writer.write(zeros.data(), zeros.size() * sizeof(float));
    writer.finish();
  };
  write("layers.9.experts.gate_lora_a", {3, 2, 4});
  EXPECT_THAT(describe_error(), HasSubstr("which this model does not have"));
  write("layers.0.experts.gate_lora_a", {3, 2, 5});
  EXPECT_THAT(testing::user_error([&] { load_adapter(directory_, store); }), HasSubstr("has the shape [3, 2, 5]"));
  write("layers.0.experts.gate_lora_a", {3, 2, 4});
  EXPECT_THAT(testing::user_error([&] { load_adapter(directory_, store); }), HasSubstr("lacks the tensor"));
}

TEST_F(Adapters, FusingSplitAdaptersDoublesTheRankWithABlockDiagonalB) {
  ParameterStore store;
  make(store, lora_of(ExpertLora::kSplit));
  save_adapter(directory_, store,
               {.lora = lora_of(ExpertLora::kSplit), .layout = AdapterLayout::kTargetParameters, .base_model = ""});
  std::ifstream config_file(directory_ / "adapter_config.json");
  const Json config = Json::parse(config_file);
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 12.0);
  const SafetensorsFile file(directory_ / "adapter_model.safetensors");
  const std::string key = std::string(kExperts) + ".base_layer.lora_B.weight";
  ASSERT_EQ(file.at(key).shape, (std::vector<int64_t>{10, 12}));  // [2I, 2r·E]
  const std::vector<float> b = file.read_floats(key);
  for (size_t row = 0; row < 10; ++row) {
    for (size_t column = 0; column < 12; ++column) {
      const bool of_gate = column / 3 < 2;  // expert innermost
      EXPECT_EQ(b[row * 12 + column] != 0.0f, of_gate == (row < 5)) << row << " " << column;
    }
  }
}

/// PEFT has no per-expert form for a model whose files store all experts of a layer in one tensor.
TEST_F(Adapters, SplitAdaptersOfFusedFilesAreWrittenAsTargetParameters) {
  sizes_.separate_files = false;
  for (const std::vector<std::string>& targets :
       {std::vector<std::string>{"all-experts"}, {"gate_proj", "up_proj", "down_proj"}, {"*linear"}}) {
    LoraOptions lora = lora_of(ExpertLora::kSplit);
    lora.target_modules = targets;
    ParameterStore store;
    make(store, lora);
    save_adapter(directory_, store, {.lora = lora, .base_model = ""});
    const SafetensorsFile file(directory_ / "adapter_model.safetensors");
    EXPECT_EQ(file.at(std::string(kExperts) + ".base_layer.lora_B.weight").shape, (std::vector<int64_t>{10, 12}));
    EXPECT_EQ(merged_after_loading(), testing::merged(store));
  }
}

TEST_F(Adapters, ATrainedRouterIsSavedWholeWithItsBias) {
  sizes_.router_bias = true;
  const LoraOptions lora = lora_of(ExpertLora::kSplit);
  ParameterStore store, loaded;
  make(store, lora);
  for (const char* name : {"model.layers.0.mlp.gate.weight", "model.layers.0.mlp.gate.bias"}) {
    store.find(name)->set_trainable(true);
  }
  save_adapter(directory_, store, {.lora = lora, .base_model = ""});
  std::ifstream config(directory_ / "adapter_config.json");
  EXPECT_EQ(Json::parse(config)["modules_to_save"], Json::array({"mlp.gate"}));
  testing::add_model(loaded, sizes_);
  EXPECT_TRUE(describe_adapter(directory_, loaded).whole.contains(ParameterKind::kRouter));
  attach_lora(loaded, lora);
  for (Parameter& p : loaded.all()) {
    if (p.spec().kind == ParameterKind::kRouter) p.set_trainable(true);
  }
  loaded.allocate(Device{});
  testing::fill(loaded, 4);
  load_adapter(directory_, loaded);
  for (const char* name : {"model.layers.0.mlp.gate.weight", "model.layers.0.mlp.gate.bias"}) {
    EXPECT_EQ(testing::bytes_of(loaded.find(name)->value().whole()),
              testing::bytes_of(store.find(name)->value().whole()))
        << name;
  }
}

TEST_F(Adapters, TargetParametersOfOldPeftAreRefused) {
  ParameterStore store;
  make(store, lora_of(ExpertLora::kShared));
  save_adapter(directory_, store,
               {.lora = lora_of(ExpertLora::kShared), .layout = AdapterLayout::kTargetParameters, .base_model = ""});
  EXPECT_EQ(describe_error(), "");
  edit_config("peft_version", "0.18.1");
  EXPECT_THAT(describe_error(), HasSubstr("PEFT 0.18.1"));
  edit_config("peft_version", nullptr);
  EXPECT_NE(describe_error(), "");
  edit_config("peft_version", "1.0.0");
  EXPECT_EQ(describe_error(), "");
}

TEST_F(Adapters, UnsupportedOptionsAreRefusedByName) {
  ParameterStore store;
  make(store, lora_of(ExpertLora::kSplit));
  save_adapter(directory_, store, {.lora = lora_of(ExpertLora::kSplit), .base_model = ""});
  edit_config("use_rslora", "yes");
  EXPECT_THAT(describe_error(), HasSubstr("use_rslora"));
  edit_config("use_rslora", false);
  for (const Json& rank : {Json(0), Json(-3), Json(1e300), Json("x")}) {
    edit_config("r", rank);
    EXPECT_THAT(describe_error(), HasSubstr("rank r")) << rank;
  }
  edit_config("r", 2);
  for (const Json& dropout : {Json(1), Json(-0.1), Json(0.99999999999)}) {  // the last is 1 in float32
    edit_config("lora_dropout", dropout);
    EXPECT_THAT(describe_error(), HasSubstr("lora_dropout")) << dropout;
  }
  edit_config("lora_dropout", 0);
  edit_config("lora_alpha", 1e300);
  EXPECT_THAT(describe_error(), HasSubstr("lora_alpha"));
}

TEST_F(Adapters, MissingAndExtraTensorsAreNamed) {
  ParameterStore store;
  make(store, lora_of(ExpertLora::kSplit));
  LoraOptions attention = lora_of(ExpertLora::kSplit);
  attention.target_modules = {"attention"};
  ParameterStore smaller;
  make(smaller, attention);
  save_adapter(directory_, smaller, {.lora = attention, .base_model = ""});
  EXPECT_THAT(testing::user_error([&] { load_adapter(directory_, store); }), HasSubstr("lacks the tensor"));
  save_adapter(directory_, store, {.lora = lora_of(ExpertLora::kSplit), .base_model = ""});
  EXPECT_THAT(testing::user_error([&] { load_adapter(directory_, smaller); }), HasSubstr("experts.0.w1"));
}

/// gpt-oss: files store experts transposed, with interleaved outputs, and fused only.
void add_transposed_experts(ParameterStore& store) {
  const std::string experts = "model.layers.0.mlp.experts.";
  store.add(
      {experts + "gate_up_proj", {3, 10, 4}, ParameterKind::kExpertsGateUp, 0, {}, FileOrder::kTransposedInterleaved},
      DType::kF32);
  store.add({experts + "down_proj", {3, 4, 5}, ParameterKind::kExpertsDown, 0, {}, FileOrder::kTransposed},
            DType::kF32);
}

TEST_F(Adapters, OfInterleavedExpertsAreTargetParametersInTheFilesOrder) {
  for (const ExpertLora trained : {ExpertLora::kSplit, ExpertLora::kShared}) {
    const LoraOptions lora{
        .r = 2, .alpha = 6, .expert_lora = trained, .target_modules = {"all-experts"}, .target_parameters = {}};
    ParameterStore store, again;
    add_transposed_experts(store);
    attach_lora(store, lora);
    store.allocate(Device{});
    testing::fill(store, 3);
    save_adapter(directory_, store, {.lora = lora, .layout = AdapterLayout::kSplit, .base_model = {}});
    if (trained == ExpertLora::kShared) {
      // B is [2I, r E]: row 2 i of the file is output i of gate, row 2 i + 1 output i of up.
      const SafetensorsFile file(directory_ / "adapter_model.safetensors");
      const std::vector<float> b = file.read_floats(std::string(kExperts) + ".base_layer.lora_B.weight");
      const float* ours = store.find("model.layers.0.mlp.experts.gate_up_proj.lora_B")->value().whole().as<float>();
      for (size_t row = 0; row < 10; ++row) {
        const size_t output = row % 2 * 5 + row / 2;
        for (size_t e = 0; e < 3; ++e) {
          for (size_t rho = 0; rho < 2; ++rho) EXPECT_EQ(b[(row * 2 + rho) * 3 + e], ours[(e * 10 + output) * 2 + rho]);
        }
      }
    }
    add_transposed_experts(again);
    attach_lora(again, describe_adapter(directory_, again).lora);
    again.allocate(Device{});
    testing::fill(again, 3);
    load_adapter(directory_, again);
    const std::vector<float> want = testing::merged(store), got = testing::merged(again);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << i;
  }
}

/// A parameter [2, 3, 4] with the values 0, 1, …
struct Counted {
  Counted() {
    parameter = &store.add({"p", {2, 3, 4}, ParameterKind::kLora, 0, {}}, DType::kF32);
    store.allocate(Device{});
    std::iota(values(), values() + 24, 0.0f);
  }
  float* values() const { return parameter->value().whole().as<float>(); }
  std::vector<float> gathered(const AdapterTensor& tensor) {
    const std::span<const float> made = gather(
        tensor, [](const Parameter& p) { return p.value().whole().as<float>(); }, scratch);
    return {made.begin(), made.end()};
  }

  ParameterStore store;
  Parameter* parameter;
  std::vector<float> scratch;
};

TEST(AdapterTensor, ARunIsReadWhereItLies) {
  Counted counted;
  const AdapterTensor tensor{"k", {2, 4}, {AdapterBlock::run(*counted.parameter, 4, 8)}};
  EXPECT_TRUE(tensor.is_run());
  std::vector<float> scratch;
  EXPECT_EQ(gather(
                tensor, [](const Parameter& p) { return p.value().whole().as<float>(); }, scratch)
                .data(),
            counted.values() + 4);
  scatter(tensor, std::vector<float>(8, -1.0f));
  EXPECT_EQ(std::count(counted.values(), counted.values() + 24, -1.0f), 8);
  EXPECT_EQ(counted.values()[4], -1.0f);
  EXPECT_EQ(counted.values()[12], 12.0f);
}

TEST(AdapterTensor, StridesTurnExpertsInnermostAndBack) {
  Counted counted;
  // [e, o, r] at (o · 4 + r) · 2 + e of the file, with outputs 2, 0, 1.
  AdapterTensor tensor{"k", {3, 8}, {}};
  for (const auto& [output, row] : {std::pair<int64_t, int64_t>{0, 1}, {1, 2}, {2, 0}}) {
    tensor.blocks.push_back({counted.parameter, {2, 1, 4}, {output * 4, {12, 4, 1}}, {row * 8, {1, 8, 2}}});
  }
  EXPECT_FALSE(tensor.is_run());
  const std::vector<float> expected = {8, 20, 9, 21, 10, 22, 11, 23, 0, 12, 1, 13,
                                       2, 14, 3, 15, 4,  16, 5,  17, 6, 18, 7, 19};
  EXPECT_EQ(counted.gathered(tensor), expected);
  std::fill(counted.values(), counted.values() + 24, 0.0f);
  scatter(tensor, expected);
  for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(counted.values()[i], static_cast<float>(i));
}

TEST(AdapterTensor, WhatNoBlockHoldsIsZeroAndFactorsMultiply) {
  Counted counted;
  counted.scratch.assign(40, 9.0f);
  // Two rows of three; the second and third elements get 1 and 2 times one half.
  const AdapterTensor tensor{"k", {2, 3}, {{counted.parameter, {1, 1, 2}, {.begin = 1}, {.begin = 4}, 0.5f}}};
  EXPECT_EQ(counted.gathered(tensor), (std::vector<float>{0, 0, 0, 0, 0.5f, 1}));
  EXPECT_EQ(counted.gathered({"none", {2, 2}, {}}), std::vector<float>(4));
}

}  // namespace
}  // namespace hone
