// Adapters of other programs and other models: what they target, how they name tensors, in which files they are.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

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

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

constexpr const char* kLayer = "base_model.model.model.layers.0.";

LoraOptions lora_on(std::vector<std::string> modules, std::vector<std::string> parameters = {}) {
  LoraOptions lora;
  lora.r = 2;
  lora.alpha = 6;
  lora.target_modules = std::move(modules);
  lora.target_parameters = std::move(parameters);
  return lora;
}

class AdapterForms : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("hone_adapter_forms_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static void add_two_layers(ParameterStore& store) {
    testing::add_model(store, {});
    store.add({"lm_head.weight", {7, 4}, ParameterKind::kHead, -1, {}}, DType::kF32);
    store.add({"model.layers.1.self_attn.q_proj.weight", {6, 4}, ParameterKind::kAttention, 1, {}}, DType::kF32);
    store.add({"model.layers.1.self_attn.o_proj.weight", {4, 6}, ParameterKind::kAttention, 1, {}}, DType::kF32);
    testing::add_experts(store, {}, 1);
  }
  static void allocate(ParameterStore& store, const LoraOptions& lora) {
    attach_lora(store, lora);
    store.allocate(Device{});
    testing::fill(store, 3);
  }
  /// Writes an adapter of two layers; returns the merged weights.
  std::vector<float> write(const LoraOptions& lora, AdapterLayout layout = AdapterLayout::kSplit) {
    ParameterStore store;
    add_two_layers(store);
    allocate(store, lora);
    save_adapter(folder_, store, {.lora = lora, .layout = layout, .base_model = ""});
    return testing::merged(store);
  }
  std::vector<float> merged_after_loading() const {
    ParameterStore store;
    add_two_layers(store);
    allocate(store, describe_adapter(folder_, store).lora);
    load_adapter(folder_, store);
    return testing::merged(store);
  }
  std::string error() const {
    ParameterStore store;
    add_two_layers(store);
    return testing::user_error([&] { describe_adapter(folder_, store); });
  }
  std::vector<std::string> warnings() const {
    ParameterStore store;
    add_two_layers(store);
    return describe_adapter(folder_, store).warnings;
  }
  Json config() const { return read_json(folder_ / "adapter_config.json"); }
  void edit_config(const std::string& key, const Json& value) const {
    Json json = config();
    json[key] = value;
    write_text_file(folder_ / "adapter_config.json", json.dump());
  }
  /// Writes the tensors again, under the names that `rename` gives them; "" leaves one out.
  void rewrite(const std::function<std::string(const std::string&)>& rename) const {
    const fs::path path = folder_ / "adapter_model.safetensors";
    std::vector<SafetensorsWriter::Announced> announced;
    std::vector<std::vector<float>> values;
    {
      const SafetensorsFile file(path);
      for (const SafetensorsEntry& entry : file.entries()) {
        const std::string name = rename(entry.name);
        if (name.empty()) continue;
        announced.push_back({name, DType::kF32, entry.shape});
        values.push_back(file.read_floats(entry.name));
      }
    }
    SafetensorsWriter writer(path, announced);
    for (const auto& tensor : values) writer.write(tensor.data(), tensor.size() * sizeof(float));
    writer.finish();
  }
  void leave_out(const std::string& part) const {
    rewrite([&](const std::string& name) { return name.find(part) == std::string::npos ? name : ""; });
  }

  fs::path folder_;
};

std::string replaced(std::string text, const std::string& part, const std::string& by) {
  const size_t at = text.find(part);
  return at == std::string::npos ? text : text.replace(at, part.size(), by);
}

TEST_F(AdapterForms, AFileThatLacksLayersOfItsTargetsIsNotWhole) {
  const LoraOptions lora = lora_on({"attention", "all-experts"});
  for (const char* part : {"layers.1.self_attn.q_proj", "o_proj", "layers.1.block_sparse_moe.experts", "w1"}) {
    SCOPED_TRACE(part);
    write(lora);
    EXPECT_EQ(error(), "");
    leave_out(part);
    EXPECT_THAT(error(), HasSubstr("it is not whole"));
  }
  write(lora_on({}, {"*gate_up_proj", "*down_proj"}), AdapterLayout::kTargetParameters);
  EXPECT_EQ(error(), "");
  leave_out("layers.1.mlp.experts.base_layer");
  EXPECT_NE(error(), "");
  write(lora);
  edit_config("target_modules", "all-linear");
  EXPECT_EQ(error(), "");
  leave_out("layers.1.self_attn");
  EXPECT_THAT(error(), HasSubstr("in other layers it has them"));
}

TEST_F(AdapterForms, ATensorOutsideOfTheTargetsIsNamed) {
  write(lora_on({"attention"}));
  edit_config("target_modules", Json::array({"q_proj"}));
  EXPECT_THAT(error(), HasSubstr("'model.layers.0.self_attn.o_proj', 'model.layers.1.self_attn.o_proj'"));
  EXPECT_THAT(error(), HasSubstr("its targets do not include"));
  edit_config("target_modules", Json::array({"q_proj", "o_proj"}));
  EXPECT_EQ(error(), "");
  edit_config("layers_to_transform", 0);
  EXPECT_THAT(error(), HasSubstr("'model.layers.1.self_attn.q_proj'"));
  edit_config("layers_to_transform", Json::array({0, 1}));
  EXPECT_EQ(error(), "");
  edit_config("layers_pattern", "blocks");
  EXPECT_NE(error(), "");
  edit_config("layers_pattern", Json::array({"blocks", "layers"}));
  EXPECT_EQ(error(), "");
  edit_config("exclude_modules", Json::array({"layers.1.self_attn.o_proj"}));
  EXPECT_THAT(error(), HasSubstr("'model.layers.1.self_attn.o_proj'"));
}

TEST_F(AdapterForms, TargetsMayBeAnExpression) {
  write(lora_on({"attention"}));
  edit_config("target_modules", R"(.*\.layers\.\d+\.self_attn\.(q|o)_proj)");
  EXPECT_EQ(error(), "");
  edit_config("target_modules", R"(language_model\.model\.layers\.\d+\.self_attn\.(q|o)_proj)");
  EXPECT_EQ(error(), "") << "as transformers 4 names a model with vision";
  edit_config("target_modules", R"(.*\.layers\.0\.self_attn\.(q|o)_proj)");
  EXPECT_THAT(error(), HasSubstr("'model.layers.1.self_attn.q_proj'"));
}

/// With transformers 5, gate_proj means no experts: before PEFT converted such targets, nothing of them was adapted.
TEST_F(AdapterForms, ExpertsThatATargetMayMeanAreAWarning) {
  write(lora_on({"attention"}));
  edit_config("target_modules", Json::array({"q_proj", "o_proj", "down_proj", "gate_proj"}));
  EXPECT_EQ(error(), "");
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("they are not adapted")));
  edit_config("target_parameters", Json::array({"experts.down_proj"}));
  EXPECT_THAT(error(), HasSubstr("it is not whole")) << "a parameter means nothing else";
}

TEST_F(AdapterForms, WhatIsSavedInFullIsThere) {
  write(lora_on({"attention"}));
  edit_config("modules_to_save", Json::array({"lm_head"}));
  EXPECT_THAT(error(), HasSubstr("modules_to_save of the adapter includes 'lm_head'"));
}

/// A name like down_proj means the shared expert's too, which has no adapter here, and gate_proj the experts'.
TEST_F(AdapterForms, OwnConfigurationsNameWhatIsAdaptedAndNothingElse) {
  const std::vector<LoraOptions> all = {lora_on({"attention", "all-experts"}), lora_on({"attention", "all-linear"}),
                                        lora_on({"all-experts"}), lora_on({"*layers.1.*experts*", "q_proj"})};
  for (const LoraOptions& lora : all) {
    for (const AdapterLayout layout : {AdapterLayout::kSplit, AdapterLayout::kTargetParameters}) {
      ParameterStore store;
      add_two_layers(store);
      store.add({"model.layers.0.mlp.shared.down_proj.weight", {4, 5}, ParameterKind::kMlp, 0, {}}, DType::kF32);
      store.add({"model.layers.0.mlp.shared.w1.weight", {5, 4}, ParameterKind::kMlp, 0, {}}, DType::kF32);
      allocate(store, lora);
      save_adapter(folder_, store, {.lora = lora, .layout = layout, .base_model = ""});
      ParameterStore again;
      add_two_layers(again);
      again.add({"model.layers.0.mlp.shared.down_proj.weight", {4, 5}, ParameterKind::kMlp, 0, {}}, DType::kF32);
      again.add({"model.layers.0.mlp.shared.w1.weight", {5, 4}, ParameterKind::kMlp, 0, {}}, DType::kF32);
      EXPECT_THAT(describe_adapter(folder_, again).warnings, IsEmpty()) << config()["target_modules"];
    }
  }
}

TEST_F(AdapterForms, KeysOfOtherProgramsAreRead) {
  const std::vector<float> expected = write(lora_on({"attention", "all-experts"}));
  const auto read_as = [&](const std::function<std::string(const std::string&)>& rename) {
    write(lora_on({"attention", "all-experts"}));
    rewrite(rename);
    return merged_after_loading();
  };
  const auto before_weight = [](const std::string& name, const std::string& part) {
    return name.substr(0, name.size() - 7) + part + ".weight";
  };
  EXPECT_EQ(read_as([&](const std::string& name) { return before_weight(name, ".default"); }), expected);
  EXPECT_EQ(read_as([&](const std::string& name) { return before_weight(name, ".my_adapter"); }), expected);
  EXPECT_EQ(read_as([](const std::string& name) { return "_orig_mod." + name; }), expected);
  EXPECT_EQ(
      read_as([](const std::string& name) { return replaced(name, "self_attn", "_fsdp_wrapped_module.self_attn"); }),
      expected);
  EXPECT_EQ(
      read_as([](const std::string& name) { return replaced(name, "model.layers", "model.language_model.layers"); }),
      expected);
  EXPECT_EQ(read_as([](const std::string& name) {
              return replaced(name, "base_model.model.model.", "base_model.model.language_model.model.");
            }),
            expected);
}

TEST_F(AdapterForms, AModelWithVisionReadsKeysWithoutItsPrefix) {
  const auto add = [](ParameterStore& store) {
    store.add({"model.language_model.layers.0.self_attn.q_proj.weight", {6, 4}, ParameterKind::kAttention, 0, {}},
              DType::kF32);
  };
  const LoraOptions lora = lora_on({"attention"});
  ParameterStore store, again;
  add(store);
  allocate(store, lora);
  save_adapter(folder_, store, {.lora = lora, .base_model = ""});
  rewrite([](const std::string& name) { return replaced(name, "model.language_model.layers", "model.layers"); });
  add(again);
  allocate(again, describe_adapter(folder_, again).lora);
  load_adapter(folder_, again);
  EXPECT_EQ(testing::merged(again), testing::merged(store));
}

TEST_F(AdapterForms, TwoAdaptersInOneFileAndTwoNamesOfOneTensorAreRefused) {
  write(lora_on({"attention"}));
  rewrite([](const std::string& name) {
    return replaced(name, ".weight", name.find("q_proj") == std::string::npos ? ".second.weight" : ".first.weight");
  });
  EXPECT_THAT(error(), HasSubstr("several adapters: 'first' and 'second'"));
  write(lora_on({"attention"}));
  rewrite([](const std::string& name) {
    if (name.find("layers.1.self_attn.q_proj.lora_A") == std::string::npos) return name;
    return std::string(kLayer) + "self_attn.q_proj.lora_A.default.weight";
  });
  EXPECT_THAT(error(), HasSubstr("is there twice, under two names"));
}

TEST_F(AdapterForms, WeightsSavedInFullMayHaveTheWrappersName) {
  ParameterStore store, again;
  const LoraOptions lora = lora_on({"attention"});
  add_two_layers(store);
  attach_lora(store, lora);
  for (const char* name : {"lm_head.weight", "model.layers.0.mlp.gate.weight"}) store.find(name)->set_trainable(true);
  store.allocate(Device{});
  testing::fill(store, 3);
  save_adapter(folder_, store, {.lora = lora, .base_model = ""});
  rewrite([](const std::string& name) {
    if (name.ends_with("lm_head.weight")) return replaced(name, ".weight", ".modules_to_save.default.weight");
    return replaced(name, "mlp.gate.weight", "block_sparse_moe.gate.modules_to_save.weight");
  });
  add_two_layers(again);
  const AdapterDescription description = describe_adapter(folder_, again);
  EXPECT_THAT(description.whole, ElementsAre(ParameterKind::kRouter, ParameterKind::kHead));
  attach_lora(again, description.lora);
  for (Parameter& p : again.all()) {
    if (description.whole.contains(p.spec().kind)) p.set_trainable(true);
  }
  again.allocate(Device{});
  testing::fill(again, 4);
  load_adapter(folder_, again);
  for (const char* name : {"lm_head.weight", "model.layers.0.mlp.gate.weight"}) {
    EXPECT_EQ(testing::bytes_of(again.find(name)->value().whole()),
              testing::bytes_of(store.find(name)->value().whole()))
        << name;
  }
}

TEST_F(AdapterForms, WhatIsNoLoraOfAWeightIsNamed) {
  for (const auto& [end, what] : {std::pair("embed_tokens.lora_embedding_A", "a LoRA of an embedding"),
                                  {"embed_tokens.lora_embedding_B.default", "a LoRA of an embedding"},
                                  {"embed_tokens.token_adapter.trainable_tokens_delta", "the rows of some tokens"},
                                  {"layers.0.self_attn.q_proj.lora_B.bias", "a bias of an adapter"}}) {
    write(lora_on({"attention"}));
    rewrite([&, tail = end](const std::string& name) {
      return name == std::string(kLayer) + "self_attn.o_proj.lora_A.weight"
                 ? std::string("base_model.model.model.") + tail
                 : name;
    });
    EXPECT_THAT(error(), HasSubstr(what)) << end;
  }
  rewrite([](const std::string&) { return std::string(); });
  EXPECT_THAT(error(), HasSubstr("holds no LoRA tensors"));
  fs::remove(folder_ / "adapter_model.safetensors");
  EXPECT_THAT(error(), HasSubstr("has no adapter_model.safetensors"));
}

TEST_F(AdapterForms, AnotherVocabularyIsSaidToBeOne) {
  const auto write_head = [&](const char* name, int64_t rows) {
    write(lora_on({"attention"}));
    const fs::path path = folder_ / "adapter_model.safetensors";
    std::vector<SafetensorsWriter::Announced> announced;
    {
      const SafetensorsFile file(path);
      for (const SafetensorsEntry& entry : file.entries()) announced.push_back({entry.name, entry.dtype, entry.shape});
    }
    announced.push_back({name, DType::kF32, {rows, 4}});
    SafetensorsWriter writer(path, announced);
    for (const auto& tensor : announced) {
      const std::vector<float> zeros(static_cast<size_t>(tensor.numel()));
      writer.write(zeros.data(), zeros.size() * sizeof(float));
    }
    writer.finish();
  };
  for (const char* name : {"base_model.model.lm_head.weight", "base_model.model.lm_head.base_layer.weight",
                           "base_model.model.model.embed_tokens.modules_to_save.weight"}) {
    write_head(name, 9);
    EXPECT_THAT(error(), HasSubstr("a vocabulary of 9 tokens, and this model's has 7")) << name;
    write_head(name, 7);
    EXPECT_EQ(error(), "") << name;
  }
}

/// PEFT writes modules_to_save of an embedding and a head that were resized twice, and a third time as they were.
TEST_F(AdapterForms, AWeightMayBeThereTwiceIfBothAreEqual) {
  for (const float second : {0.0f, 1.0f}) {
    write(lora_on({"attention"}));
    const fs::path path = folder_ / "adapter_model.safetensors";
    std::vector<SafetensorsWriter::Announced> announced;
    {
      const SafetensorsFile file(path);
      for (const SafetensorsEntry& entry : file.entries()) announced.push_back({entry.name, entry.dtype, entry.shape});
    }
    for (const char* part : {"", "original_module.", "modules_to_save."}) {
      announced.push_back({fmt::format("base_model.model.lm_head.{}weight", part), DType::kF32, {7, 4}});
    }
    SafetensorsWriter writer(path, announced);
    for (const auto& tensor : announced) {
      const bool last = &tensor == &announced.back();
      const std::vector<float> values(static_cast<size_t>(tensor.numel()), last ? second : 0.0f);
      writer.write(values.data(), values.size() * sizeof(float));
    }
    writer.finish();
    const bool refused = error().find("is there twice, under two names") != std::string::npos;
    EXPECT_EQ(refused, second != 0) << error();
  }
}

/// Made with torch.save({…}, "adapter_model.bin"): float32 and bfloat16, one of them transposed; element i is i / 8
/// - 1.
TEST_F(AdapterForms, AdapterModelBinIsReadWithoutExecutingIt) {
  write(lora_on({"attention"}));
  edit_config("layers_to_transform", Json::array({0}));
  fs::remove(folder_ / "adapter_model.safetensors");
  fs::copy_file(fs::path(HONE_SOURCE_DIR) / "tests/fixtures/peft_bin/adapter_model.bin", folder_ / "adapter_model.bin");
  ParameterStore store;
  add_two_layers(store);
  allocate(store, describe_adapter(folder_, store).lora);
  load_adapter(folder_, store);
  const auto values = [&](const char* name) {
    const Tensor& value = store.find(std::string("model.layers.0.self_attn.") + name)->value().whole();
    return std::vector<float>(value.as<float>(), value.as<float>() + value.numel());
  };
  EXPECT_THAT(values("q_proj.lora_A.weight"), ElementsAre(-1, -.875, -.75, -.625, -.5, -.375, -.25, -.125));
  EXPECT_THAT(values("q_proj.lora_B.weight"),
              ElementsAre(-1, -.25, -.875, -.125, -.75, 0, -.625, .125, -.5, .25, -.375, .375));
  EXPECT_THAT(values("o_proj.lora_A.weight"),
              ElementsAre(-1, -.875, -.75, -.625, -.5, -.375, -.25, -.125, 0, .125, .25, .375));
  write_text_file(folder_ / "adapter_model.bin", "not an archive");
  EXPECT_THAT(error(), HasSubstr("torch.save"));
}

TEST_F(AdapterForms, RoutersAreAdaptedAsPeftAdaptsThem) {
  const LoraOptions lora = lora_on({"attention"}, {"gate.weight"});
  for (const AdapterLayout layout :
       {AdapterLayout::kSplit, AdapterLayout::kTargetParameters, AdapterLayout::kAsTrained}) {
    const std::vector<float> expected = write(lora, layout);
    EXPECT_EQ(config()["target_parameters"], Json::array({"mlp.gate.weight"}));
    const SafetensorsFile file(folder_ / "adapter_model.safetensors");
    EXPECT_EQ(file.at(std::string(kLayer) + "mlp.gate.lora_B.weight").shape, (std::vector<int64_t>{3, 2}));
    EXPECT_EQ(merged_after_loading(), expected);
  }
  ParameterStore store;
  add_two_layers(store);
  attach_lora(store, lora);
  for (const AdapterLayout layout : {AdapterLayout::kKt, AdapterLayout::kSglang}) {
    EXPECT_THAT(testing::user_error([&] { require_layout(store, layout); }), HasSubstr("adapts the router too"));
  }
}

/// transformers 4 had routers as modules, Mixtral's under another name.
TEST_F(AdapterForms, RoutersOfEarlierVersionsAreRead) {
  const std::vector<float> expected = write(lora_on({"attention"}, {"gate.weight"}));
  edit_config("target_modules", Json::array({"q_proj", "o_proj", "gate"}));
  edit_config("target_parameters", nullptr);
  EXPECT_EQ(merged_after_loading(), expected);
  rewrite([](const std::string& name) { return replaced(name, "mlp.gate", "block_sparse_moe.gate"); });
  EXPECT_EQ(merged_after_loading(), expected);
}

TEST_F(AdapterForms, RanksOfRoutersFollowPeftsNames) {
  LoraOptions lora = lora_on({"attention"}, {"gate.weight"});
  lora.rank_pattern = {{"mlp.gate.weight", 1}};
  lora.alpha_pattern = {{"mlp.gate.weight", 5}};
  const std::vector<float> expected = write(lora);
  EXPECT_EQ(config()["rank_pattern"], (Json{{"mlp.gate.weight", 1}}));
  EXPECT_EQ(config()["alpha_pattern"], (Json{{"mlp.gate.weight", 5}}));
  EXPECT_EQ(merged_after_loading(), expected);
}

/// An adapter that was trained with dropout, as target_parameters: PEFT refuses to load them with any.
TEST_F(AdapterForms, TargetParametersAreWrittenWithoutDropout) {
  LoraOptions lora = lora_on({"attention", "all-experts"});
  lora.dropout = 0.25;
  write(lora, AdapterLayout::kTargetParameters);
  EXPECT_EQ(config()["lora_dropout"], 0.0);
  write(lora);
  EXPECT_EQ(config()["lora_dropout"], 0.25);
  edit_config("lora_dropout", 0.99999999);  // 1 as a float32
  EXPECT_THAT(error(), HasSubstr("not in [0, 1)"));
}

TEST_F(AdapterForms, AKtFileHasTheTensorsOfItsManifest) {
  const LoraOptions lora = lora_on({"attention", "all-experts"});
  const fs::path folder = folder_ / "kt";
  write_directory(folder, [&](const fs::path& temporary, FileChecksums&) {
    ParameterStore store;
    add_two_layers(store);
    allocate(store, lora);
    save_adapter(temporary, store, {.lora = lora, .layout = AdapterLayout::kKt, .base_model = "base"});
  });
  const auto error_after = [&](const std::function<void(Json&)>& edit) {
    Json manifest = read_json(folder / kKtManifestName);
    const std::string before = manifest.dump();
    edit(manifest["artifacts"]["fused_expert_lora.safetensors"]);
    write_text_file(folder / kKtManifestName, manifest.dump());
    const std::string error = testing::user_error([&] { check_kt_manifest(folder); });
    write_text_file(folder / kKtManifestName, before);
    return error;
  };
  EXPECT_EQ(error_after([](Json&) {}), "");
  EXPECT_THAT(error_after([](Json& record) { record["tensor_count"] = 3; }), HasSubstr("has 12 tensors, not 3"));
  EXPECT_THAT(error_after([](Json& record) { record["tensors"]["more"] = Json::object(); }),
              HasSubstr("has no tensor 'more'"));
  EXPECT_THAT(error_after([](Json& record) { record["tensors"].erase("layers.0.experts.gate_lora_a"); }),
              HasSubstr("does not list 'layers.0.experts.gate_lora_a'"));
  EXPECT_THAT(error_after([](Json& record) { record["tensors"]["layers.0.experts.gate_lora_a"]["shape"][0] = 9; }),
              HasSubstr("has the shape [3, 2, 4], not [9,2,4]"));
  fs::remove(folder / kKtManifestName);
  SafetensorsWriter(folder / "fused_expert_lora.safetensors", {}).finish();
  ParameterStore store;
  add_two_layers(store);
  EXPECT_THAT(testing::user_error([&] { describe_adapter(folder, store); }), HasSubstr("has no tensors"));
}

}  // namespace
}  // namespace hone
