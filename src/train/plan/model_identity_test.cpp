#include "train/plan/model_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/files/root_testing.h"
#include "core/text/json.h"
#include "report/console.h"
#include "weights/checkpoint.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ModelIdentity : public ::testing::Test {
 protected:
  ModelIdentity() {
    const fs::path fixture = std::string(HONE_SOURCE_DIR) + "/tests/fixtures/goldens/qwen3_moe/model";
    fs::copy(fixture, root_ / "model");
    config_.model.model_name_or_path = (root_ / "model").string();
    config_.model.dtype = DType::kF32;
    config_.model.finetuning_type = FinetuningType::kLora;
    config_.data.max_length = 32;
    config_.lora.r = 4;
    config_.lora.alpha = 8;
    config_.lora.target_modules = {"attention"};
    config_.machine.device = "cpu";
    config_.machine.threads = 1;
  }

  Json identity(const RunConfig& config) {
    RunContext context(config.machine, logger_);
    return Json::parse(model_identity(describe_model(config, context)).dump());  // as a checkpoint holds it
  }
  template <class Change>
  ModelDifference after(Change change) {
    const Json before = identity(config_);
    RunConfig config = config_;
    change(config);
    return model_difference(before, identity(config));
  }
  void edit_config(const std::string& key, const Json& value) {
    Json json = Json::parse(testing::TestRoot::read(root_ / "model/config.json"));
    json[key] = value;
    write_text_file(root_ / "model/config.json", json.dump());
  }

  /// Flips a bit of every byte after the header.
  static void change_values(const fs::path& file) {
    std::string bytes = testing::TestRoot::read(file);
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    for (size_t i = sizeof header + header; i < bytes.size(); ++i) bytes[i] = static_cast<char>(bytes[i] ^ 1);
    std::ofstream(file, std::ios::binary) << bytes;
  }

  testing::TestRoot root_;
  RunConfig config_;
  Console console_{Terminal{.seen = false}};
  Logger logger_{console_, LogLevel::kOff};
};

TEST_F(ModelIdentity, ABaseThatIsMovedOrSavedByAnotherVersionIsTheSame) {
  const ModelDifference moved = after([&](RunConfig& config) {
    fs::rename(root_ / "model", root_ / "elsewhere");
    config.model.model_name_or_path = (root_ / "elsewhere").string();
    config.lora.dropout = 0.25;  // is of the training, not of the model
  });
  EXPECT_EQ(moved.refused, "");
  EXPECT_EQ(moved.named, "lora_dropout is 0.25, was 0.0");
  fs::rename(root_ / "elsewhere", root_ / "model");
  EXPECT_EQ(after([&](RunConfig&) {
              edit_config("transformers_version", "9.9");
              edit_config("_name_or_path", "somewhere");
              edit_config("use_cache", false);
            }).refused,
            "");
}

TEST_F(ModelIdentity, AnotherBaseIsNamedByWhatDiffers) {
  const ModelDifference epsilon = after([&](RunConfig&) { edit_config("rms_norm_eps", 1e-5); });
  EXPECT_THAT(epsilon.refused, HasSubstr("config.json of the base: rms_norm_eps is 1e-05, was 1e-06"));
  EXPECT_EQ(epsilon.keys, "model_name_or_path");
  // The same configuration and shapes with other values, as an instruct model beside its base.
  const ModelDifference values = after([&](RunConfig&) {
    for (const auto& entry : fs::directory_iterator(root_ / "model")) {
      if (entry.path().extension() == ".safetensors") change_values(entry.path());
    }
  });
  EXPECT_EQ(values.refused, "the base's weights have other values");
}

TEST_F(ModelIdentity, AdaptersDifferByWhatTheyAddAndWhereTheyAre) {
  EXPECT_THAT(after([](RunConfig& config) { config.lora.alpha = 99; }).refused,
              AllOf(HasSubstr("lora_alpha is 99"), HasSubstr("scaling 24.75 in layers"),
                    HasSubstr(", was LoRA r 4, scaling 2")));
  EXPECT_THAT(after([](RunConfig& config) { config.lora.use_rslora = true; }).refused,
              AllOf(HasSubstr("use_rslora is true, was false"), HasSubstr("scaling 4 ")));
  EXPECT_THAT(after([](RunConfig& config) { config.lora.use_dora = true; }).refused, HasSubstr("DoRA r 4"));
  EXPECT_THAT(after([](RunConfig& config) { config.lora.target_modules = {"q_proj"}; }).refused,
              HasSubstr("k_proj.weight is none, was LoRA r 4"));
  EXPECT_THAT(after([](RunConfig& config) { config.lora.layers = {"1"}; }).refused, HasSubstr("in layers 1, was "));
  EXPECT_THAT(after([](RunConfig& config) {
                config.lora.alpha_pattern = Json{{"q_proj", 3}};
              }).refused,
              AllOf(HasSubstr("scaling 0.75"), Not(HasSubstr("k_proj"))));
  // Another way to write the same scaling is the same adapter.
  EXPECT_EQ(after([](RunConfig& config) {
              config.lora.use_rslora = true;
              config.lora.alpha = 4;
            }).refused,
            "");
}

TEST_F(ModelIdentity, APackedBaseIsAnotherAndADtypeIsNamed) {
  const ModelDifference packed =
      after([](RunConfig& config) { config.model.base_weight_dtype = BaseFormat(nf4_format()); });
  EXPECT_THAT(packed.refused, HasSubstr("the packed format of model.layers.*"));
  EXPECT_THAT(packed.keys, HasSubstr("base_weight_dtype"));
  const ModelDifference rounded = after([](RunConfig& config) { config.model.dtype = DType::kBF16; });
  EXPECT_EQ(rounded.refused, "");
  EXPECT_EQ(rounded.named, "dtype is bfloat16, was float32");
}

TEST_F(ModelIdentity, FullFineTuningHasNoBaseToCompare) {
  config_.model.finetuning_type = FinetuningType::kFull;
  const Json before = identity(config_);
  edit_config("rms_norm_eps", 1e-5);
  config_.schedule.learning_rate = 1e-9;
  EXPECT_EQ(model_difference(before, identity(config_)).refused, "");
  EXPECT_EQ(model_difference(before, identity(config_)).named, "learning_rate is 1e-09, was 1e-05");
  config_.model.finetuning_type = FinetuningType::kLora;
  EXPECT_EQ(model_difference(before, identity(config_)).refused, "finetuning_type is lora, was full");
}

}  // namespace
}  // namespace hone
