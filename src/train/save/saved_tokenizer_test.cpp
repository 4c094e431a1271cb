#include "train/save/saved_tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/text/json.h"
#include "text/tokenizer.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

class SavedTokenizer : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
    fs::create_directories(root_ / "model");
    fs::create_directories(root_ / "saved");
    write("model/tokenizer.json", R"({"added_tokens": [{"id": 1, "content": "<|im_end|>", "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})");
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& name, const std::string& text) { std::ofstream(root_ / name) << text; }

  fs::path root_;
};

TEST_F(SavedTokenizer, IsTheModels) {
  write("model/tokenizer_config.json", R"({"eos_token": "<|im_end|>", "chat_template": "old"})");
  write("model/weights.bin", "0");
  copy_tokenizer_files(root_ / "model", root_ / "saved");
  const Tokenizer tokenizer = Tokenizer::load(root_ / "saved");
  EXPECT_EQ(tokenizer.chat_template(), "old");
  EXPECT_EQ(tokenizer.special_tokens().eos, tokenizer.token_to_id("<|im_end|>"));
  EXPECT_FALSE(fs::exists(root_ / "saved/weights.bin"));
}

TEST_F(SavedTokenizer, HasTheTemplateOfTheRunAndNoOther) {
  write("model/tokenizer_config.json", R"({"eos_token": "<|im_end|>", "chat_template": [
      {"name": "default", "template": "old"}, {"name": "tool_use", "template": "tools"}], "model_max_length": 64})");
  copy_tokenizer_files(root_ / "model", root_ / "saved");
  save_chat_template(root_ / "saved", "new {{ messages }}\n");
  const Tokenizer tokenizer = Tokenizer::load(root_ / "saved");
  EXPECT_EQ(tokenizer.chat_template(), "new {{ messages }}\n");
  EXPECT_EQ(tokenizer.chat_template("tool_use"), std::nullopt);
  std::ifstream file(root_ / "saved/tokenizer_config.json");
  const Json config = Json::parse(file);
  EXPECT_EQ(config, Json::parse(R"({"eos_token": "<|im_end|>", "model_max_length": 64})"));
}

TEST_F(SavedTokenizer, AMergedModelGetsTheAdaptersTemplate) {
  write("saved/tokenizer_config.json", R"({"chat_template": "old"})");
  copy_tokenizer_files(root_ / "model", root_ / "saved");
  copy_chat_template(root_ / "model", root_ / "saved");
  EXPECT_EQ(Tokenizer::load(root_ / "saved").chat_template(), "old");
  write("model/chat_template.jinja", "the adapter's");
  copy_chat_template(root_ / "model", root_ / "saved");
  EXPECT_EQ(Tokenizer::load(root_ / "saved").chat_template(), "the adapter's");
}

TEST_F(SavedTokenizer, OfAReplacedTokenizerNothingStays) {
  write("saved/chat_template.jinja", "old");
  write("saved/vocab.json", "{}");
  write("saved/config.json", "{}");
  replace_tokenizer_files(root_ / "model", root_ / "saved");
  EXPECT_FALSE(std::filesystem::exists(root_ / "saved/chat_template.jinja"));
  EXPECT_FALSE(std::filesystem::exists(root_ / "saved/vocab.json"));
  EXPECT_TRUE(std::filesystem::exists(root_ / "saved/tokenizer.json"));
  EXPECT_TRUE(std::filesystem::exists(root_ / "saved/config.json"));
}

TEST_F(SavedTokenizer, ATokenizerWithoutConfigurationGetsTheTemplateToo) {
  copy_tokenizer_files(root_ / "model", root_ / "saved");
  save_chat_template(root_ / "saved", "new");
  EXPECT_EQ(Tokenizer::load(root_ / "saved").chat_template(), "new");
}

TEST_F(SavedTokenizer, TokensInOtherRolesAreSavedWithIt) {
  write("model/tokenizer_config.json", R"({"pad_token": "a"})");
  write("model/config.json", "{}");
  Tokenizer tokenizer = Tokenizer::load(root_ / "model");
  const TokenChoice choice = TokenChoice::parse({{"eos_token", "<|im_end|>"}}, {"a"}, "");
  tokenizer.choose(choice);
  save_token_choice(root_ / "model", choice, tokenizer);
  const Tokenizer saved = Tokenizer::load(root_ / "model");
  EXPECT_EQ(saved.special_tokens().eos, tokenizer.token_to_id("<|im_end|>"));
  EXPECT_EQ(saved.special_tokens().pad, tokenizer.token_to_id("a"));
  EXPECT_EQ(saved.special_tokens().stop, (std::vector<int32_t>{1, 0})) << "both end generation";
  write("saved/tokenizer_config.json", R"({"eos_token": "a", "added": 1})");
  copy_special_tokens(root_ / "model", root_ / "saved");
  std::ifstream file(root_ / "saved/tokenizer_config.json");
  const Json config = Json::parse(file);
  EXPECT_EQ(config["eos_token"], "<|im_end|>");
  EXPECT_EQ(config["pad_token"], "a");
  EXPECT_EQ(config["added"], 1);
}

}  // namespace
}  // namespace hone
