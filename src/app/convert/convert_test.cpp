#include "app/convert/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>

#include "app/merge/merge.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "core/text/json.h"
#include "weights/checkpoint.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kCases = fs::path(HONE_SOURCE_DIR) / "tests/fixtures/sharded";

class WeightConversion : public testing::Test {
 protected:
  WeightConversion()
      : folder_(fs::path(testing::TempDir()) /
                (std::string("hone_convert_") + testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~WeightConversion() override { fs::remove_all(folder_); }

  WeightConversionOptions options(const std::string& name) const {
    WeightConversionOptions options;
    options.input = (kCases / name).string();
    options.model = (kCases / name / "model").string();
    options.output = (folder_ / "out").string();
    return options;
  }
  static std::string problem(const WeightConversionOptions& options) {
    try {
      run_convert(options);
    } catch (const UserError& error) {
      return error.message();
    }
    return "none";
  }
  Json config(const char* name) const {
    std::ifstream file(folder_ / "out" / name);
    return Json::parse(file);
  }

  fs::path folder_;
};

std::vector<std::byte> bytes_of(const Checkpoint::Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.entry->bytes);
  tensor.file->read(*tensor.entry, 0, bytes.data(), bytes.size());
  return bytes;
}

void expect_same_tensors(const Checkpoint& a, const Checkpoint& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const auto& [name, tensor] : a.tensors()) {
    const Checkpoint::Tensor* other = b.find(name);
    ASSERT_TRUE(other) << name;
    EXPECT_EQ(tensor.entry->shape, other->entry->shape) << name;
    EXPECT_EQ(tensor.entry->dtype, other->entry->dtype) << name;
    EXPECT_EQ(bytes_of(tensor), bytes_of(*other)) << name;
  }
}

TEST_F(WeightConversion, ShardedModelsBecomeWhatSavePretrainedWrites) {
  for (const char* name : {"fsdp2_qwen3_moe", "scattermoe_mixtral"}) {
    WeightConversionOptions one = options(name);
    one.force = true;
    ASSERT_EQ(run_convert(one), 0);
    expect_same_tensors(Checkpoint::open(folder_ / "out"), Checkpoint::open(kCases / name / "tuned"));
    EXPECT_TRUE(fs::exists(folder_ / "out/generation_config.json"));
    EXPECT_EQ(config("config.json")["model_type"].is_string(), true);
  }
}

TEST_F(WeightConversion, LargeModelsAreCutIntoFilesWithAnIndex) {
  WeightConversionOptions small = options("scattermoe_mixtral");
  small.input += "/pytorch_model_fsdp_0";
  small.max_shard_size = 1000;
  ASSERT_EQ(run_convert(small), 0);
  EXPECT_GT(config("model.safetensors.index.json")["weight_map"].size(), 10u);
  expect_same_tensors(Checkpoint::open(folder_ / "out"), Checkpoint::open(kCases / "scattermoe_mixtral/tuned"));
}

TEST_F(WeightConversion, TheDtypeCanBeChosen) {
  WeightConversionOptions narrow = options("scattermoe_mixtral");
  narrow.dtype = "bfloat16";
  ASSERT_EQ(run_convert(narrow), 0);
  const Checkpoint written = Checkpoint::open(folder_ / "out"),
                   tuned = Checkpoint::open(kCases / "scattermoe_mixtral/tuned");
  for (const auto& [name, tensor] : written.tensors()) {
    ASSERT_EQ(tensor.entry->dtype, DType::kBF16);
    const std::vector<float> exact = tuned.find(name)->file->read_floats(name);
    const std::vector<float> rounded = tensor.file->read_floats(name);
    for (size_t i = 0; i < exact.size(); ++i) EXPECT_EQ(rounded[i], static_cast<float>(BFloat16(exact[i])));
  }
  EXPECT_EQ(config("config.json")["dtype"], "bfloat16");
}

TEST_F(WeightConversion, LoraWeightsBecomeTheAdapterThatPeftWrites) {
  // The second has adapters of a router and of fused experts, which PEFT names by target_parameters alone.
  for (const char* name : {"fsdp2_lora", "fsdp2_lora_experts"}) {
    WeightConversionOptions lora = options(name);
    lora.force = true;
    EXPECT_THAT(problem(lora), HasSubstr("their scaling is not known"));
    lora.lora_alpha = 4;
    ASSERT_EQ(run_convert(lora), 0);
    const SafetensorsFile written(folder_ / "out/adapter_model.safetensors");
    const SafetensorsFile expected(kCases / name / "tuned/adapter_model.safetensors");
    ASSERT_EQ(written.entries().size(), expected.entries().size());
    for (const SafetensorsEntry& entry : expected.entries()) {
      EXPECT_EQ(written.read_floats(entry.name), expected.read_floats(entry.name)) << entry.name;
    }
    const Json config = this->config("adapter_config.json");
    std::ifstream file(kCases / name / "tuned/adapter_config.json");
    const Json peft = Json::parse(file);
    const auto same_names = [&](const char* key) {
      const auto names = [&](const Json& of) {
        return of.value(key, Json()).is_null() ? std::set<std::string>() : of[key].get<std::set<std::string>>();
      };
      EXPECT_EQ(names(config), names(peft)) << name << ", " << key;
    };
    for (const char* key : {"target_modules", "target_parameters", "modules_to_save"}) same_names(key);
    for (const char* key : {"r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern"})
      EXPECT_EQ(config[key], peft[key]) << name << ", " << key;
  }
}

TEST_F(WeightConversion, TheRunsAdapterConfigIsKept) {
  fs::create_directories(folder_ / "checkpoint");
  fs::copy(kCases / "fsdp2_lora/pytorch_model_fsdp_0", folder_ / "checkpoint/pytorch_model_fsdp_0",
           fs::copy_options::recursive);
  fs::copy_file(kCases / "fsdp2_lora/tuned/adapter_config.json", folder_ / "checkpoint/adapter_config.json");
  WeightConversionOptions lora = options("fsdp2_lora");
  lora.input = (folder_ / "checkpoint").string();
  ASSERT_EQ(run_convert(lora), 0);
  EXPECT_EQ(config("adapter_config.json")["lora_alpha"], 4);
  EXPECT_EQ(config("adapter_config.json")["peft_version"], "0.21.2");
}

/// The logits of a model with an adapter.
std::vector<float> logits_of(const fs::path& model, const fs::path& adapter) {
  ThreadPool pool(2);
  Stream stream(Device{}, pool);
  LoadedModel loaded(model, DType::kF32);
  loaded.set_trainable(TrainableOptions::nothing(adapter));
  Probe probe(probe_prompts(nullptr, loaded.decoder().config().vocab_size), stream);
  loaded.load(stream.device(), pool, 0, true);
  return probe.free_logits(loaded);
}

/// Converts an adapter through all layouts and back: the logits of base + adapter do not change.
TEST_F(WeightConversion, AdaptersAreTheSameInEveryLayout) {
  const fs::path goldens = fs::path(HONE_SOURCE_DIR) / "tests/fixtures/goldens";
  const std::pair<const char*, bool> adapters[] = {{"qwen3_moe/split_adapter", true},
                                                   {"qwen3_moe/lora_experts_final", true},
                                                   {"mixtral/lora_experts_final", true},
                                                   {"gemma4/lora_experts_final", false},
                                                   {"granitemoehybrid/lora_experts_final", false}};
  for (const auto& [adapter, has_split] : adapters) {  // has_split: the model's files have a tensor for each expert
    const fs::path original = goldens / adapter, model = original.parent_path() / "model";
    std::vector<float> expected = logits_of(model, original);
    fs::path last = original;
    for (const char* layout : {"kt", "sglang", "split", "target_parameters", "kt", "target_parameters", "sglang"}) {
      if (!has_split && layout == std::string_view("split")) continue;
      WeightConversionOptions one;
      one.input = last.string();
      one.model = model.string();
      one.to = layout;
      one.output = (folder_ / std::to_string(std::distance(fs::directory_iterator(folder_), {}))).string();
      ASSERT_EQ(run_convert(one), 0);
      const bool rounds = last == original;  // kt, the first, has experts' adapters in bfloat16
      last = one.output;
      const std::vector<float> logits = logits_of(model, last);
      // Added zeros may change the order of sums; A and B in bfloat16 move their product by at most 2 / 256.
      EXPECT_LT(relative_difference(logits, expected), rounds ? 2.0 / 256 : 1e-6) << adapter << " as " << layout;
      if (rounds) expected = logits;
    }
  }
}

TEST_F(WeightConversion, SaysWhatAnAdapterCannotBe) {
  WeightConversionOptions one;
  one.input = (kCases / "fsdp2_lora/tuned").string();
  one.output = (folder_ / "out").string();
  EXPECT_EQ(problem(one), "the layout is not named");
  one.to = "merged";
  EXPECT_EQ(problem(one), "'merged' is not a layout of adapters");
  one.to = "split";
  EXPECT_EQ(problem(one), "the adapter does not say which model it belongs to");
  one.model = (kCases / "fsdp2_qwen3_moe/model").string();
  EXPECT_EQ(problem(one), "none");  // q_proj and v_proj have the same shapes here
}

TEST_F(WeightConversion, SaysWhatDoesNotFit) {
  WeightConversionOptions nothing = options("fsdp2_qwen3_moe");
  nothing.input = folder_.string();
  EXPECT_EQ(problem(nothing), "the folder holds no sharded checkpoint");
  nothing.input += "/absent";
  EXPECT_EQ(problem(nothing), "the folder does not exist");
  WeightConversionOptions unnamed = options("fsdp2_qwen3_moe");
  unnamed.model.clear();
  EXPECT_EQ(problem(unnamed), "the pretrained model is not named");
  WeightConversionOptions other = options("fsdp2_qwen3_moe");
  other.model = (kCases / "scattermoe_mixtral/model").string();
  EXPECT_THAT(problem(other),
              HasSubstr("belong to no parameter of the model: 'model.layers.0.self_attn.k_norm.weight'"));
  other = options("scattermoe_mixtral");
  other.model = (kCases / "fsdp2_qwen3_moe/model").string();
  EXPECT_THAT(problem(other), HasSubstr("are not in the checkpoint"));
  fs::create_directories(folder_ / "two");
  fs::copy(kCases / "fsdp2_lora/pytorch_model_fsdp_0", folder_ / "two/pytorch_model_fsdp_0",
           fs::copy_options::recursive);
  fs::copy(kCases / "fsdp2_lora/pytorch_model_fsdp_0", folder_ / "two/pytorch_model_fsdp_1",
           fs::copy_options::recursive);
  WeightConversionOptions two = options("fsdp2_lora");
  two.input = (folder_ / "two").string();
  EXPECT_EQ(problem(two), "the folder has 2 sharded models");
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

}  // namespace
}  // namespace hone
