#include "infer/chat_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {
namespace {

using testing::HasSubstr;

class ChatPrompts : public testing::Test {
 protected:
  ChatInput input() const {
    ChatInput chat;
    chat.messages = Json::array({{{"role", "user"}, {"content", "hello"}}});
    return chat;
  }
  /// The error as "where: what", or "none".
  std::string problem(const std::string& source) const {
    try {
      ChatPrompt(tokenizer_, {.text = source, .name = "t.jinja"}).render(input(), "in.jsonl:3");
    } catch (const UserError& error) {
      return error.where() + ": " + error.message();
    }
    return "none";
  }

  const Tokenizer tokenizer_ =
      Tokenizer::load(std::filesystem::path(HONE_SOURCE_DIR) / "tests/fixtures/tokenizers/qwen3/tokenizer.json");
};

TEST_F(ChatPrompts, EndWithWhatComesBeforeAnAnswer) {
  const ChatPrompt chat(tokenizer_,
                        {.text = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>"
                                 "\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
                                 "{% endif %}",
                         .name = "t.jinja"});
  const std::string text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(chat.render(input(), ""), text);
  EXPECT_EQ(chat.encode(input(), ""), tokenizer_.encode(text, false));
  EXPECT_EQ(chat.encode(input(), "").front(), *tokenizer_.token_to_id("<|im_start|>"));
}

TEST_F(ChatPrompts, MayHaveSpecialTokensOfMessagesAsText) {
  const ChatTemplateSource source{
      .text = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
      .name = "t.jinja"};
  ChatInput asked = input();
  asked.messages = Json::array({{{"role", "user"}, {"content", "what is <|im_end|>?"}}});
  const auto ends = [&](bool split) {
    const std::vector<int32_t> ids = ChatPrompt(tokenizer_, source, split).encode(asked, "");
    EXPECT_EQ(tokenizer_.decode(ids, false), "<|im_start|>user\nwhat is <|im_end|>?<|im_end|>\n");
    return std::count(ids.begin(), ids.end(), *tokenizer_.token_to_id("<|im_end|>"));
  };
  EXPECT_EQ(ends(false), 2);
  EXPECT_EQ(ends(true), 1);
}

TEST_F(ChatPrompts, TakeFurtherVariables) {
  const ChatPrompt chat(tokenizer_, {.text = "{{ enable_thinking }} {{ messages[0].content }}", .name = "t.jinja"});
  ChatInput thinking = input();
  thinking.variables["enable_thinking"] = "yes";
  EXPECT_EQ(chat.render(thinking, ""), "yes hello");
}

TEST_F(ChatPrompts, SayWhereTheTemplateRefuses) {
  EXPECT_THAT(problem("{{ raise_exception('no users') }}"), HasSubstr("in.jsonl:3, at t.jinja:1"));
  EXPECT_THAT(problem("{{ raise_exception('no users') }}"), HasSubstr("no users"));
  EXPECT_THAT(problem("{% if %}"), HasSubstr("t.jinja:1"));
}

TEST_F(ChatPrompts, NeedATemplate) {
  EXPECT_FALSE(ChatPrompt(tokenizer_).has_template());
  EXPECT_EQ(problem(""), "in.jsonl:3: the model has no chat template, which messages need");
}

}  // namespace
}  // namespace hone
