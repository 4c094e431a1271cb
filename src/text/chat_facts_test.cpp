#include "text/chat_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kChatMl =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

class ChatFacts : public testing::Test {
 protected:
  /// The thinned tokenizer of Qwen3 (no bos of its own) with these special tokens.
  static Tokenizer tokenizer(const std::string& config, const std::string& generation = "{}") {
    const fs::path folder =
        fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::create_directories(folder);
    fs::copy_file(fs::path(HONE_SOURCE_DIR) / "tests/fixtures/tokenizers/qwen3/tokenizer.json",
                  folder / "tokenizer.json", fs::copy_options::overwrite_existing);
    std::ofstream(folder / "tokenizer_config.json") << config;
    std::ofstream(folder / "generation_config.json") << generation;
    Tokenizer loaded = Tokenizer::load(folder);
    fs::remove_all(folder);
    return loaded;
  }

  /// How the template ends a plain answer to a plain question.
  static TurnEnd end_of(const char* source, const Tokenizer& with) {
    ChatInput chat;
    chat.messages =
        Json::array({{{"role", "user"}, {"content", "question"}}, {{"role", "assistant"}, {"content", "answer"}}});
    chat.variables = special_token_variables(with);
    const RenderedChat rendered = ChatTemplate(source, "t").render(chat);
    const auto ranges = supervised_ranges(rendered, mask_options(with, TrainOn::kAssistant));
    EXPECT_EQ(ranges.size(), 1u);
    return turn_end(rendered, ranges.at(0), with);
  }
};

TEST_F(ChatFacts, VariablesAreTheNamesOfTheTokens) {
  EXPECT_EQ(special_token_variables(tokenizer(R"({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})")),
            (Json{{"bos_token", "<|im_start|>"}, {"eos_token", "<|im_end|>"}}));
  EXPECT_EQ(special_token_variables(tokenizer("{}")), Json::object());
}

TEST_F(ChatFacts, AnEndOfTurnThatGenerationKnowsIsFine) {
  const Tokenizer qwen = tokenizer(R"({"eos_token": "<|im_end|>"})");
  const TurnEnd end = end_of(kChatMl, qwen);
  EXPECT_EQ(end.text, "<|im_end|>");
  EXPECT_TRUE(end.ids.size() == 1 && end.learnt && end.stops);
  EXPECT_EQ(end.problem(qwen), "");
}

TEST_F(ChatFacts, AnEndOfTurnThatGenerationDoesNotKnowIsAProblem) {
  const Tokenizer other = tokenizer(R"({"eos_token": "<|endoftext|>"})");
  const TurnEnd end = end_of(kChatMl, other);
  EXPECT_TRUE(end.ids.size() == 1 && end.learnt);
  EXPECT_FALSE(end.stops);
  EXPECT_THAT(end.problem(other), HasSubstr("generation will not stop there"));
  const Tokenizer both = tokenizer(R"({"eos_token": "<|endoftext|>"})", R"({"eos_token_id": [4096, 4098]})");
  EXPECT_TRUE(end_of(kChatMl, both).stops);
}

TEST_F(ChatFacts, AnEndOfTurnOfSeveralTokensIsAProblem) {
  const Tokenizer qwen = tokenizer(R"({"eos_token": "<|im_end|>"})");
  const TurnEnd end = end_of("{% for m in messages %}{{ m.role }}: {{ m.content }} [END]\n{% endfor %}", qwen);
  EXPECT_FALSE(end.ids.size() == 1 || end.learnt || end.stops);
  EXPECT_THAT(end.problem(qwen), HasSubstr("not one of the tokenizer's own"));
}

TEST_F(ChatFacts, AnAnswerWithoutEndIsAProblem) {
  const Tokenizer qwen = tokenizer(R"({"eos_token": "<|im_end|>"})");
  const TurnEnd end = end_of("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", qwen);
  EXPECT_EQ(end.text, "");
  EXPECT_THAT(end.problem(qwen), HasSubstr("without an end-of-turn token"));
}

TEST_F(ChatFacts, TwoBosTokensAreSeenAtTheBeginningOnly) {
  SpecialTokens special;
  special.bos = 1;
  const auto doubled = [&](std::vector<int32_t> ids) { return begins_with_two_bos(ids, special); };
  EXPECT_TRUE(doubled({1, 1, 5}));
  EXPECT_FALSE(doubled({1, 5, 1, 1}));
  EXPECT_FALSE(doubled({1}));
  EXPECT_FALSE(doubled({}));
  special.bos.reset();
  EXPECT_FALSE(doubled({1, 1}));
}

}  // namespace
}  // namespace hone
