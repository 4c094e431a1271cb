#include "app/inference/answer_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/chat/chat_model_testing.h"

namespace hone {
namespace {

/// A tokenizer of bytes; id 3 + byte.
const Tokenizer& bytes() {
  static const Tokenizer tokenizer = [] {
    const auto folder = std::filesystem::path(testing::TempDir()) / "hone_answer_text";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "tokenizer.json") << byte_tokenizer().dump();
    return Tokenizer::load(folder);
  }();
  return tokenizer;
}

struct Told {
  std::string content, reasoning, calls;
  bool stopped = false;
};

/// The pieces of a text, byte by byte.
Told tell(const AnswerTextOptions& options, const std::string& text) {
  AnswerText answer(bytes(), options);
  Told told;
  const auto add = [&](const AnswerPiece& piece) {
    told.content += piece.content;
    told.reasoning += piece.reasoning;
    for (const ToolCall& call : piece.calls) told.calls += call.name + call.arguments + ";";
  };
  for (const char c : text) {
    add(answer.push(3 + static_cast<unsigned char>(c)));
    if (answer.stopped()) break;
  }
  add(answer.finish());
  told.stopped = answer.stopped();
  return told;
}

TEST(AnswerText, EndsBeforeTheFirstStopText) {
  const Told told = tell({.stop = {"\n\nQ:", "END"}}, "one\n\n\nQ: two END");
  EXPECT_EQ(told.content, "one\n");
  EXPECT_TRUE(told.stopped);
  EXPECT_EQ(tell({.stop = {"END"}}, "the EN").content, "the EN");
  EXPECT_FALSE(tell({.stop = {"END"}}, "the EN").stopped);
  EXPECT_EQ(tell({.stop = {"aab"}}, "aaab!").content, "a");
  EXPECT_EQ(tell({.stop = {"é"}}, "caféine").content, "caf");
}

TEST(AnswerText, HoldsBackOnlyWhatMayBeAStop) {
  AnswerText answer(bytes(), {.stop = {"xyz"}});
  EXPECT_EQ(answer.push(3 + 'a').content, "a");
  EXPECT_EQ(answer.push(3 + 'x').content, "");
  EXPECT_EQ(answer.push(3 + 'x').content, "x");
  EXPECT_EQ(answer.push(3 + 'b').content, "xb");
}

TEST(AnswerText, KeepsThinkingApart) {
  const Told opened = tell({.thinks = true}, "\n<think>\nhm <b>\n</think>\n\nyes <think>no</think>");
  EXPECT_EQ(opened.reasoning, "hm <b>\n");
  EXPECT_EQ(opened.content, "yes <think>no</think>");  // a block at the start alone is thinking
  const Told by_prompt = tell({.thinks = true, .open_tag = "<think>"}, "hm</think>yes");
  EXPECT_EQ(by_prompt.reasoning, "hm");
  EXPECT_EQ(by_prompt.content, "yes");
  EXPECT_EQ(tell({.thinks = true, .open_tag = "<think>"}, "no end").reasoning, "no end");
  EXPECT_EQ(tell({.thinks = true}, "  <thin ice").content, "  <thin ice");
  EXPECT_EQ(tell({.thinks = true}, "[THINK]a[/THINK]b").reasoning, "a");
  EXPECT_EQ(tell({}, "<think>a</think>b").content, "<think>a</think>b");
  EXPECT_EQ(tell({.thinks = true}, "  ").content, "  ");
}

TEST(AnswerText, StopsCountInThinkingToo) {
  const Told told = tell({.stop = {"STOP"}, .thinks = true}, "<think>a STOP b</think>c");
  EXPECT_EQ(told.reasoning, "a ");
  EXPECT_EQ(told.content, "");
  EXPECT_TRUE(told.stopped);
}

TEST(AnswerText, ReadsCallsOfTools) {
  const std::string call = R"(<tool_call>
{"name": "f", "arguments": {"b": 1, "a": "</s>"}}
</tool_call>)";
  const Told told = tell({.calls = true}, "So:\n" + call + "\n" + call);
  EXPECT_EQ(told.content, "So:\n");
  EXPECT_EQ(told.calls, R"(f{"b":1,"a":"</s>"};f{"b":1,"a":"</s>"};)");
  EXPECT_EQ(tell({}, call).content, call);
  EXPECT_EQ(tell({.calls = true}, "<tool_call>no json</tool_call>x").content, "<tool_call>no json</tool_call>x");
  EXPECT_EQ(tell({.calls = true}, "<tool_call>{\"name\": ").content, "<tool_call>{\"name\": ");
  EXPECT_EQ(tell({.thinks = true, .calls = true}, "<think>a</think>\n" + call).calls, R"(f{"b":1,"a":"</s>"};)");
}

}  // namespace
}  // namespace hone
