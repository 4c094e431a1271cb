// What a conversion says of models and data that train would refuse.
#include "app/convert_config/known_faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "app/convert_config/convert_testing.h"
#include "app/convert_config/model_families.h"

namespace hone {
namespace {

using testing::HasSubstr;
using testing::Not;

class KnownFaultsOfConverted : public ConvertConfig {
 protected:
  /// What is printed about an Axolotl configuration of this model.
  std::string said(const std::string& model, const std::string& more = "") {
    (void)converted(write("a.yml", "base_model: " + model + "\nsequence_len: 64\nmicro_batch_size: 1\n" + more));
    return printed_;
  }
  /// What is printed about one that is refused.
  std::string said_refusing(const std::string& model, const std::string& more = "") {
    EXPECT_EQ(refused(write("a.yml", "base_model: " + model + "\nsequence_len: 64\nmicro_batch_size: 1\n" + more)),
              "1 of the settings would change what is learnt, and cannot be kept");
    return printed_;
  }
  /// A folder with nothing but this config.json.
  std::string model(const std::string& json) {
    write("model/config.json", json);
    return (folder_ / "model").string();
  }
};

TEST_F(KnownFaultsOfConverted, AModelThatHoneLacksIsNamed) {
  EXPECT_THAT(said("tiiuae/falcon-7b"), HasSubstr("Hone has no Falcon: train will refuse it"));
  EXPECT_THAT(text_, HasSubstr("Hone has no Falcon: train will refuse it")) << "the file says so, too";
  EXPECT_THAT(said("google/gemma-3-4b-it"), HasSubstr("Hone has no Gemma 3: train"));
  EXPECT_THAT(said(model(R"({"architectures": ["FalconForCausalLM"], "model_type": "falcon"})")),
              HasSubstr("Hone has no FalconForCausalLM: train will refuse it"));
  for (const char* name : {"Qwen/Qwen3-8B", "mistralai/Mixtral-8x7B-v0.1", "openai/gpt-oss-20b", "./my-own-model"}) {
    EXPECT_THAT(said(name), Not(HasSubstr("Hone has no"))) << name;
  }
  EXPECT_THAT(said("TheBloke/Llama-2-7B-GPTQ"), HasSubstr("files of GPTQ are not read"));
}

TEST_F(KnownFaultsOfConverted, ModelsOfImagesAreRefused) {
  EXPECT_THAT(said_refusing("Qwen/Qwen3-VL-4B-Instruct"), HasSubstr("images and audio are not trained"));
  EXPECT_THAT(said_refusing(model(R"({"architectures": ["LlavaForConditionalGeneration"], "vision_config": {}})")),
              HasSubstr("images and audio are not trained"));
}

TEST_F(KnownFaultsOfConverted, DataOfImagesAreRefused) {
  write("d.jsonl", R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],)"
                   R"( "images": ["a.png"]})"
                   "\n");
  EXPECT_THAT(
      said_refusing("m", "datasets:\n  - {path: " + (folder_ / "d.jsonl").string() + ", type: chat_template}\n"),
      HasSubstr("the column images holds media"));
}

TEST_F(KnownFaultsOfConverted, SettingsAreHeldAgainstTheModel) {
  const std::string lora = "adapter: lora\nlora_target_modules: [";
  EXPECT_THAT(said("cpu-moe", lora + "q_proj, nosuch_proj]\n"), HasSubstr("train will refuse it: LoRA target 'nosuch"));
  EXPECT_THAT(said("Qwen/Qwen3-8B-Base", lora + "nosuch_proj]\n"), HasSubstr("train will refuse it: LoRA target"))
      << "a name that begins with that of a shape";
  EXPECT_THAT(said("cpu-moe", lora + "q_proj]\n"), Not(HasSubstr("train will refuse")));
  EXPECT_THAT(said("cpu-moe", "unfrozen_parameters: [nosuch]\n"), HasSubstr("train will refuse it"));
}

TEST_F(KnownFaultsOfConverted, RowsAreHeldAgainstTheirFormat) {
  const std::string path = write("d.jsonl", "{\"question\": \"a\"}\n");
  const std::string here = "datasets:\n  - {path: " + path + ", type: alpaca}\n";
  EXPECT_THAT(said("m", here), HasSubstr("train will refuse it"));
  write("d.jsonl", "{\"instruction\": \"a\", \"output\": \"b\"}\n");
  EXPECT_THAT(said("m", here), Not(HasSubstr("train will refuse")));
  write("d.jsonl", "{\"prompt\": \"a\", \"response\": \"b\", \"rejected\": \"c\"}\n");
  EXPECT_THAT(said("m", "datasets:\n  - {path: " + path + ", type: prompt_response}\n"),
              HasSubstr("train will refuse it: the column 'rejected'"));
}

TEST_F(KnownFaultsOfConverted, RowsAreEncodedWhereTheModelIsHere) {
  const std::string golden = HONE_SOURCE_DIR "/tests/fixtures/goldens/qwen3_moe/model";
  const std::string path = write("d.jsonl", "{\"input_ids\": [1, 2, 3, 99999999], \"labels\": [1, 2, 3, 99999999]}\n");
  const std::string here = "datasets:\n  - {path: " + path + ", type: tokenized}\n";
  EXPECT_THAT(said(golden, here), HasSubstr("train will refuse it"));
  write("d.jsonl", "{\"input_ids\": [1, 2, 3, 4], \"labels\": [1, 2, 3, 4]}\n");
  EXPECT_THAT(said(golden, here), Not(HasSubstr("train will refuse")));
}

TEST_F(KnownFaultsOfConverted, ExpertsAreAskedAboutWhereTheyAre) {
  const std::string all = "adapter: lora\nlora_target_linear: true\n";
  EXPECT_THAT(said("Qwen/Qwen3-30B-A3B", all), HasSubstr("add all-experts"));
  EXPECT_THAT(said("./my-own-model", all), HasSubstr("add all-experts")) << "it may have experts";
  EXPECT_THAT(said("Qwen/Qwen3-8B", all), Not(HasSubstr("add all-experts")));
  EXPECT_THAT(said("meta-llama/Llama-3.2-1B", all), Not(HasSubstr("add all-experts")));
}

/// A name that a glob matches.
std::string example_of(const std::string& glob) {
  std::string name;
  for (size_t i = 0; i < glob.size(); ++i) {
    if (glob[i] == '[') {
      name += glob[i + 1];
      i = glob.find(']', i);
    } else {
      name += glob[i] == '*' ? '1' : glob[i];
    }
  }
  return name;
}

TEST(ModelFamilies, NoneIsHiddenByAnother) {
  for (const ModelFamily& family : model_families()) {
    const ModelFamily* found = family_named("someone/" + example_of(family.names));
    ASSERT_NE(found, nullptr) << family.names;
    EXPECT_EQ(std::string(found->title), family.title) << family.names;
  }
}

TEST(ModelFamilies, OneTitleIsOneArchitecture) {
  std::map<std::string, std::set<std::string>> types;
  for (const ModelFamily& family : model_families()) types[family.title].insert(family.model_type);
  for (const auto& [title, all] : types) EXPECT_EQ(all.size(), 1u) << title;
}

TEST(ModelFamilies, NamesOfReleasedModels) {
  const auto title = [](const char* name) {
    const ModelFamily* family = family_named(name);
    return std::string(family ? family->title : "");
  };
  EXPECT_EQ(title("Qwen/Qwen3-4B-Instruct-2507"), "Qwen3");
  EXPECT_EQ(title("Qwen/Qwen3-30B-A3B-Instruct-2507"), "Qwen3-MoE");
  EXPECT_EQ(title("Qwen/Qwen3.5-27B"), "dense Qwen3.5");
  EXPECT_EQ(title("Qwen/Qwen3.5-35B-A3B-Base"), "Qwen3.5-MoE");
  EXPECT_EQ(title("Qwen/Qwen2.5-VL-7B-Instruct"), "Qwen-VL");
  EXPECT_EQ(title("NousResearch/Meta-Llama-3-8B/"), "Llama");
  EXPECT_EQ(title("zai-org/GLM-4.5-Air"), "GLM-4.5");
  EXPECT_EQ(title("zai-org/GLM-4.7-Flash"), "GLM-4.7-Flash");
  EXPECT_EQ(title("MiniMaxAI/MiniMax-M2.5"), "MiniMax-M2");
  EXPECT_EQ(title("rednote-hilab/dots.llm1.inst"), "dots.llm1");
  EXPECT_EQ(title("mistralai/Mistral-Small-4-119B-2603"), "Mistral Small 4");
  EXPECT_EQ(title("tencent/Hunyuan-A13B-Instruct"), "Hunyuan-A13B");
  EXPECT_EQ(title("google/gemma-4-26B-A4B-it"), "Gemma 4");
  EXPECT_EQ(title("google/gemma-4-E4B-it"), "Gemma 4 with embeddings for each layer");
  EXPECT_EQ(title("Qwen/Qwen3-VL-30B-A3B-Instruct"), "Qwen3-VL-MoE");
  EXPECT_EQ(title("baidu/ERNIE-4.5-21B-A3B-PT"), "ERNIE 4.5 MoE");
  EXPECT_EQ(title("ibm-granite/granite-4.0-h-tiny"), "Granite 4");
  EXPECT_EQ(title("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"), "Nemotron 3");
  EXPECT_EQ(title("baidu/ERNIE-4.5-VL-28B-A3B-PT"), "ERNIE 4.5 VL");
  EXPECT_EQ(title("baidu/ERNIE-4.5-0.3B-PT"), "dense ERNIE 4.5");
  EXPECT_EQ(title("a/b"), "");
}

}  // namespace
}  // namespace hone
