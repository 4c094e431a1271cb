#include "app/inference/answer_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/chat/chat_model_testing.h"
#include "text/call_forms.h"

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

/// Calls in the form whose models are named so; `tools` of the request.
AnswerTextOptions with_calls(std::string_view models, bool thinks = false) {
  AnswerTextOptions options{.thinks = thinks, .tools = Json::parse(R"([{"function": {"name": "f"}}])")};
  for (const CallForm& form : call_forms()) {
    if (options.form == nullptr && form.models.starts_with(models)) options.form = &form;
  }
  EXPECT_NE(options.form, nullptr) << models;
  return options;
}

TEST(AnswerText, ReadsCallsOfTools) {
  const AnswerTextOptions options = with_calls("Hermes");
  const std::string call = R"(<tool_call>
{"name": "f", "arguments": {"b": 1, "a": "</s>"}}
</tool_call>)";
  const Told told = tell(options, "So:\n" + call + "\n" + call);
  EXPECT_EQ(told.content, "So:\n");
  EXPECT_EQ(told.calls, R"(f{"b":1,"a":"</s>"};f{"b":1,"a":"</s>"};)");
  EXPECT_EQ(tell({}, call).content, call);
  EXPECT_EQ(tell({.form = options.form}, call).content, call) << "no tools";
  for (const char* text : {"<tool_call>no json</tool_call>x", "<tool_call>{\"name\": ", "a <tool_cal"}) {
    EXPECT_EQ(tell(options, text).content, text);
    EXPECT_EQ(tell(options, text).calls, "");
  }
  // A call after a broken one is still a call.
  EXPECT_EQ(tell(options, "<tool_call>no</tool_call>" + call).calls, R"(f{"b":1,"a":"</s>"};)");
  EXPECT_EQ(tell(with_calls("Hermes", true), "<think>a " + call + "</think>\n" + call).calls,
            R"(f{"b":1,"a":"</s>"};)");
}

TEST(AnswerText, ReadsCallsInOtherForms) {
  const Told coder = tell(with_calls("Qwen3-Coder"),
                          "Now:\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>");
  EXPECT_EQ(coder.content, "Now:\n");
  EXPECT_EQ(coder.calls, R"(f{"a":"1"};)");
  const Told kimi = tell(with_calls("Kimi"),
                         "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
                         "<|tool_call_end|><|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{\"a\"");
  EXPECT_EQ(kimi.calls, "f{};") << "the call before the cut";
  EXPECT_EQ(kimi.content, R"(<|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{"a")");
  const Told mistral = tell(with_calls("Mistral from"), "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]f[ARGS]{\"a\": 1} [TOOL");
  EXPECT_EQ(mistral.calls, R"(f{};f{"a":1};)");
  EXPECT_EQ(mistral.content, " [TOOL");
}

TEST(AnswerText, ReadsAnAnswerThatIsACall) {
  const AnswerTextOptions options = with_calls("Llama");
  EXPECT_EQ(tell(options, "\n{\"name\": \"f\", \"parameters\": {\"a\": 1}}").calls, R"(f{"a":1};)");
  for (const char* text :
       {"{\"name\": \"f\", \"parameters\": {}} it is", "{\"a\": 1}", "Text {\"name\": \"f\"}", "{", " "}) {
    EXPECT_EQ(tell(options, text).content, text);
    EXPECT_EQ(tell(options, text).calls, "");
  }
}

TEST(AnswerText, DividesChannels) {
  const std::string thoughts = "<|channel|>analysis<|message|>hm<|end|>",
                    said = "<|start|>assistant<|channel|>final<|message|>yes",
                    call = "<|start|>assistant<|channel|>commentary to=functions.f json<|message|>{\"a\": 1}";
  const Told answer = tell(with_calls("gpt-oss", true), thoughts + said);
  EXPECT_EQ(answer.reasoning, "hm");
  EXPECT_EQ(answer.content, "yes");
  const Told called = tell(with_calls("gpt-oss", true), thoughts + call);
  EXPECT_EQ(called.reasoning, "hm");
  EXPECT_EQ(called.calls, R"(f{"a":1};)");
  EXPECT_EQ(called.content, "");
  EXPECT_EQ(tell(with_calls("gpt-oss", true), thoughts + call.substr(0, call.size() - 1)).content,
            call.substr(0, call.size() - 1));
  EXPECT_EQ(tell(with_calls("gpt-oss", true), "no channel").content, "no channel");
  EXPECT_EQ(tell({.thinks = true, .form = with_calls("gpt-oss").form}, thoughts + said).reasoning, "hm") << "no tools";
}

/// Special tokens that are marks of the form are read, and other ones are no text.
TEST(AnswerText, ReadsSpecialTokensThatAreMarks) {
  Json tokenizer = byte_tokenizer();
  for (const char* mark : {"[TOOL_CALLS]", "[ARGS]"}) {
    const size_t id = tokenizer["model"]["vocab"].size();
    tokenizer["model"]["vocab"][mark] = id;
    Json token = tokenizer["added_tokens"][0];
    token["id"] = id;
    token["content"] = mark;
    tokenizer["added_tokens"].push_back(token);
  }
  const auto tokens = Tokenizer::parse(tokenizer.dump(), "tokenizer.json");
  std::string content, calls;
  AnswerText answer(tokens, with_calls("Mistral from"));
  const auto add = [&](const AnswerPiece& piece) {
    content += piece.content;
    for (const ToolCall& call : piece.calls) calls += call.name + call.arguments + ";";
  };
  for (const int32_t id : tokens.encode("So<|user|>[TOOL_CALLS]f[ARGS]{\"a\": \"é\"}<|end|>", false))
    add(answer.push(id));
  add(answer.finish());
  EXPECT_EQ(content, "So");
  EXPECT_EQ(calls, "f{\"a\":\"é\"};");
}

/// Whatever comes, text is kept unless it is a call.
TEST(AnswerText, LosesNoTextThatIsNoCall) {
  const std::string parts[] = {"<tool_call>",
                               "</tool_call>",
                               "<function=f>",
                               "</function>",
                               "<parameter=a>",
                               "</parameter>",
                               "[TOOL_CALLS]",
                               "[ARGS]",
                               "{",
                               "}",
                               "\"",
                               "<arg_key>",
                               "<arg_value>",
                               "[",
                               "]",
                               "<|tool_call>call:",
                               "<tool_call|>",
                               "<|\"|>",
                               "a",
                               "é",
                               "<｜tool▁calls▁begin｜>",
                               "<|tool_calls_section_begin|>",
                               "<minimax:tool_call>",
                               "\n"};
  uint32_t state = 1;
  for (const CallForm& form : call_forms()) {
    AnswerTextOptions options = with_calls(form.models);
    for (int round = 0; round < 20; ++round) {
      std::string text;
      for (int i = 0; i < 12; ++i) {
        state = state * 1664525u + 1013904223u;
        text += parts[(state >> 16) % std::size(parts)];
      }
      const Told told = tell(options, text);
      if (told.calls.empty()) {
        EXPECT_EQ(told.content, text) << form.models;
      }
    }
  }
}

}  // namespace
}  // namespace hone
