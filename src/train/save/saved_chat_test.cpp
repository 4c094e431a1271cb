#include "train/save/saved_chat.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

class SavedChat : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(SavedChat, IsReadAsItWasWritten) {
  EXPECT_TRUE(saved_chat_settings(folder_).empty());
  const Json kwargs = {{"enable_thinking", false}, {"style", "é"}};
  save_chat_settings(folder_, {kwargs, {}});
  EXPECT_EQ(saved_chat_settings(folder_).kwargs, kwargs);
}

TEST_F(SavedChat, ARunWithoutSettingsLeavesNoneOfItsBase) {
  save_chat_settings(folder_, {Json{{"enable_thinking", false}}, {}});
  save_chat_settings(folder_, {});
  EXPECT_FALSE(fs::exists(folder_ / "hone_chat.json"));
}

TEST_F(SavedChat, AnAdaptersTokensAreKept) {
  const TokenChoice tokens = TokenChoice::parse({{"eos_token", "<|im_end|>"}}, {"<|call|>"}, "");
  save_chat_settings(folder_, {Json::object(), tokens});
  EXPECT_EQ(saved_chat_settings(folder_).tokens.to_json(), tokens.to_json());
  EXPECT_EQ(saved_chat_settings(folder_).kwargs, Json::object());
}

TEST_F(SavedChat, SplitSpecialTokensAreKept) {
  save_chat_settings(folder_, {.split_special_tokens = true});
  EXPECT_TRUE(saved_chat_settings(folder_).split_special_tokens);
  save_chat_settings(folder_, {Json{{"style", "é"}}, {}});
  EXPECT_FALSE(saved_chat_settings(folder_).split_special_tokens);
}

TEST_F(SavedChat, AnotherFileIsRefused) {
  for (const char* text :
       {"[1]", "{}", R"({"chat_template_kwargs": 1})", R"({"chat_template_kwargs": {}, "tokens": []})",
        R"({"chat_template_kwargs": {}, "tokens": {"eot_tokens": "x"}})",
        R"({"chat_template_kwargs": {}, "tokens": {"eot_tokens": [1]}})",
        R"({"chat_template_kwargs": {}, "tokens": {"mask_token": "x"}})",
        R"({"chat_template_kwargs": {}, "split_special_tokens": "yes"})"}) {
    std::ofstream(folder_ / "hone_chat.json", std::ios::trunc) << text;
    EXPECT_THROW(saved_chat_settings(folder_), UserError) << text;
  }
}

}  // namespace
}  // namespace hone
