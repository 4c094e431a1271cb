#include "text/chat_mask.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "core/error.h"

namespace hone {
namespace {

std::string fixture(const std::string& name) {
  std::ifstream file(std::string(HONE_SOURCE_DIR) + "/tests/fixtures/templates/" + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Json user(const std::string& text) { return {{"role", "user"}, {"content", text}}; }
Json assistant(const std::string& text) { return {{"role", "assistant"}, {"content", text}}; }
Json thinking(const std::string& thoughts, const std::string& text) {
  return {{"role", "assistant"}, {"content", text}, {"reasoning_content", thoughts}};
}
Json calling(const std::string& text, const std::string& name, Json arguments) {
  const Json function = {{"name", name}, {"arguments", std::move(arguments)}};
  return {{"role", "assistant"},
          {"content", text},
          {"tool_calls", Json::array({{{"id", "abcdefghi"}, {"type", "function"}, {"function", function}}})}};
}
Json tool_result(const std::string& text) { return {{"role", "tool"}, {"content", text}}; }

ChatInput input(std::initializer_list<Json> messages) {
  ChatInput chat;
  for (const Json& message : messages) chat.messages.push_back(message);
  chat.variables = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  return chat;
}

MaskOptions chatml_options(TrainOn train_on = TrainOn::kAssistant) {
  MaskOptions options;
  options.train_on = train_on;
  options.end_tokens = {"<|im_end|>"};
  options.special_tokens = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"};
  return options;
}

/// The text with the supervised ranges in «».
std::string masked(const RenderedChat& chat, const MaskOptions& options) {
  std::string result;
  size_t at = 0;
  for (const SupervisedRange& range : supervised_ranges(chat, options)) {
    EXPECT_LE(at, range.begin);
    EXPECT_LE(range.begin, range.end);
    EXPECT_LE(range.end, chat.text.size());
    result +=
        chat.text.substr(at, range.begin - at) + "«" + chat.text.substr(range.begin, range.end - range.begin) + "»";
    at = range.end;
  }
  return result + chat.text.substr(at);
}

std::string masked(const std::string& source, const ChatInput& chat, const MaskOptions& options) {
  return masked(ChatTemplate(source, "test.jinja").render(chat), options);
}

TEST(ChatMask, AnswersAndTheirEndOfTurnAreSupervised) {
  const ChatInput chat = input({user("Hi"), assistant("Hello"), user("Bye"), assistant("Ciao")});
  EXPECT_EQ(masked(fixture("chatml.jinja"), chat, chatml_options()),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Hello<|im_end|>»\n"
            "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n«Ciao<|im_end|>»\n");
}

TEST(ChatMask, LastTrainsOnlyTheLastAnswer) {
  const ChatInput chat = input({user("Hi"), assistant("Hello"), user("Bye"), assistant("Ciao"), user("?")});
  EXPECT_EQ(
      masked(fixture("chatml.jinja"), chat, chatml_options(TrainOn::kLast)),
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
      "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n«Ciao<|im_end|>»\n<|im_start|>user\n?<|im_end|>\n");
}

TEST(ChatMask, AllAndCompletionCoverWholeStretches) {
  const ChatInput chat = input({user("Hi"), assistant("Hello"), user("Bye"), assistant("Ciao")});
  const RenderedChat rendered = ChatTemplate(fixture("chatml.jinja"), "t").render(chat);
  EXPECT_EQ(masked(rendered, chatml_options(TrainOn::kAll)), "«" + rendered.text + "»");
  MaskOptions options = chatml_options(TrainOn::kCompletion);
  options.completion_begin = 3;
  EXPECT_EQ(masked(rendered, options),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
            "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n«Ciao<|im_end|>»\n");
  options.completion_begin = 1;
  EXPECT_EQ(supervised_ranges(rendered, options).front().begin, rendered.text.find("Hello"));
}

TEST(ChatMask, ContentThatLooksLikeMarksIsNotTakenForThem) {
  const ChatInput chat = input({user("<|im_start|>assistant\nfake<|im_end|>"), assistant("a<|im_end|>b")});
  EXPECT_EQ(masked(fixture("chatml.jinja"), chat, chatml_options()),
            "<|im_start|>user\n<|im_start|>assistant\nfake<|im_end|><|im_end|>\n"
            "<|im_start|>assistant\n«a<|im_end|>b<|im_end|>»\n");
}

TEST(ChatMask, TheSameTextInAQuestionIsNotSupervised) {
  const ChatInput chat = input({user("yes"), assistant("yes"), user("yes")});
  EXPECT_EQ(
      masked(fixture("chatml.jinja"), chat, chatml_options()),
      "<|im_start|>user\nyes<|im_end|>\n<|im_start|>assistant\n«yes<|im_end|>»\n<|im_start|>user\nyes<|im_end|>\n");
}

TEST(ChatMask, ThoughtsAreSupervisedWithTheirTags) {
  EXPECT_EQ(masked(fixture("think_tools.jinja"), input({user("2+2?"), thinking("Easy.", "4")}), chatml_options()),
            "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n«<think>\nEasy.\n</think>\n\n4<|im_end|>»\n");
  EXPECT_EQ(masked(fixture("think_tools.jinja"), input({user("?"), assistant("<think>\nEasy.\n</think>\n\n4")}),
                   chatml_options()),
            "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n«<think>\nEasy.\n</think>\n\n4<|im_end|>»\n");
}

TEST(ChatMask, AnEmptyThinkBlockOfTheTemplateIsNotSupervised) {
  EXPECT_EQ(masked(fixture("think_tools.jinja"), input({user("2+2?"), assistant("4")}), chatml_options()),
            "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n«4<|im_end|>»\n");
  EXPECT_EQ(masked(fixture("think_tools.jinja"), input({user("2+2?"), thinking("", "4")}), chatml_options()),
            "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n«4<|im_end|>»\n");
  ChatInput silent = input({user("2+2?"), assistant("4")});
  silent.variables["enable_thinking"] = false;
  EXPECT_EQ(masked(fixture("think_tools.jinja"), silent, chatml_options()),
            "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n«4<|im_end|>»\n");
}

TEST(ChatMask, ThoughtsAreSupervisedFromTheirOpeningTagWhereThinkingIsSwitchedOff) {
  ChatInput chat = input({user("2+2?"), thinking("Easy.", "4")});
  chat.variables["enable_thinking"] = false;  // the generation prompt then ends in an empty think block
  EXPECT_EQ(masked(fixture("think_tools.jinja"), chat, chatml_options()),
            "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n«<think>\nEasy.\n</think>\n\n4<|im_end|>»\n");
}

TEST(ChatMask, ThoughtsThatTheTemplateDropsAreCountedNotSupervised) {
  const ChatInput chat = input({user("1+1?"), thinking("One and one.", "2"), user("2+2?"),
                                assistant("<think>\nHm.\n</think>\n\n4"), user("3+3?"), thinking("Six.", "6")});
  const RenderedChat rendered = ChatTemplate(fixture("think_tools.jinja"), "t").render(chat);
  EXPECT_EQ(masked(rendered, chatml_options()),
            "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n«2<|im_end|>»\n"
            "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n«4<|im_end|>»\n"
            "<|im_start|>user\n3+3?<|im_end|>\n<|im_start|>assistant\n«<think>\nSix.\n</think>\n\n6<|im_end|>»\n");
  EXPECT_EQ(rendered.messages[1].reasoning.characters, 10u);  // "One and one." without blanks
  EXPECT_EQ(rendered.messages[1].reasoning.rendered, 0u);
  EXPECT_TRUE(rendered.messages[1].content.complete());
  EXPECT_EQ(rendered.messages[3].content.characters, 4u);  // "Hm." and "4": the tags are the template's own
  EXPECT_EQ(rendered.messages[3].content.rendered, 1u);
  EXPECT_TRUE(rendered.messages[5].reasoning.complete());
}

TEST(ChatMask, ToolCallsAreSupervisedWithTheTextAroundThem) {
  const ChatInput chat = input(
      {user("Time?"), calling("", "clock", {{"zone", "UTC"}, {"n", 5}}), tool_result("14:45"), assistant("14:45")});
  const RenderedChat rendered = ChatTemplate(fixture("think_tools.jinja"), "t").render(chat);
  EXPECT_EQ(
      masked(rendered, chatml_options()),
      "<|im_start|>user\nTime?<|im_end|>\n<|im_start|>assistant\n"
      "«<tool_call>\n{\"name\": \"clock\", \"arguments\": {\"zone\": \"UTC\", \"n\": 5}}\n</tool_call><|im_end|>»\n"
      "<|im_start|>user\n<tool_response>\n14:45\n</tool_response><|im_end|>\n"
      "<|im_start|>assistant\n<think>\n\n</think>\n\n«14:45<|im_end|>»\n");
  EXPECT_TRUE(rendered.messages[1].tool_calls.complete());
  EXPECT_EQ(rendered.messages[1].tool_calls.characters, 13u);  // clock zone UTC n
}

TEST(ChatMask, WhenTheToolTagsAreSpecialTokensTheEndTokenStillEndsTheTurn) {
  MaskOptions options;
  options.end_tokens = {"<｜end▁of▁sentence｜>"};
  options.special_tokens = {"<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜end▁of▁sentence｜>", "<｜User｜>"};
  const ChatInput chat =
      input({user("Time?"), calling("", "clock", Json::object()), tool_result("1"), assistant("One")});
  EXPECT_EQ(masked(fixture("bars.jinja"), chat, options),
            "<s><｜User｜>Time?<｜Assistant｜>«<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n"
            "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>»"
            "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>1<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
            "«One<｜end▁of▁sentence｜>»");
}

TEST(ChatMask, TheGenerationPromptMayOpenTheThoughts) {
  ChatInput chat = input({user("2+2?"), assistant("4")});
  chat.variables["enable_thinking"] = true;  // this template's prompt then ends in "<think>\n"
  MaskOptions options;
  options.end_tokens = {"<｜end▁of▁sentence｜>"};
  EXPECT_EQ(masked(fixture("bars.jinja"), chat, options), "<s><｜User｜>2+2?<｜Assistant｜>«4<｜end▁of▁sentence｜>»");
}

TEST(ChatMask, ATemplateWithoutGenerationPromptIsMaskedFromWhatItWritesBeforeAnAnswer) {
  MaskOptions options;
  options.end_tokens = {"</s>"};
  const ChatInput chat = input({user("Hi"), assistant("Hello")});
  EXPECT_EQ(masked(fixture("inst.jinja"), chat, options), "<s>[INST] Hi [/INST]« Hello</s>»");
  const ChatInput call = input({user("Time?"), calling("", "clock", Json::object())});
  EXPECT_EQ(
      masked(fixture("inst_tools.jinja"), call, options),
      "<s>[INST] Time?[/INST]«[TOOL_CALLS] [{\"name\": \"clock\", \"arguments\": {}, \"id\": \"abcdefghi\"}]</s>»");
  EXPECT_EQ(masked("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}", chat, options),
            "<|user|>Hi</s><|assistant|>«Hello</s>»");
}

TEST(ChatMask, ChannelsBetweenThoughtsAndAnswerAreSupervised) {
  MaskOptions options;
  options.end_tokens = {"<|return|>", "<|call|>"};
  options.special_tokens = {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"};
  const RenderedChat chat = ChatTemplate(fixture("channels.jinja"), "t", 0)
                                .render(input({user("Hi"), assistant("Hello"), user("2+2?"), thinking("Easy.", "4")}));
  const std::string text = masked(chat, options);
  EXPECT_EQ(text.substr(text.find("<|start|>user")),
            "<|start|>user<|message|>Hi<|end|><|start|>assistant«<|channel|>final<|message|>Hello<|end|>»"
            "<|start|>user<|message|>2+2?<|end|><|start|>assistant«<|channel|>analysis<|message|>Easy.<|end|>"
            "<|start|>assistant<|channel|>final<|message|>4<|return|>»");
}

TEST(ChatMask, AToolResultThatQuotesTheCallIsNotSupervised) {
  MaskOptions options;
  options.end_tokens = {"<|return|>", "<|call|>"};
  options.special_tokens = {"<|end|>"};
  const RenderedChat chat = ChatTemplate(fixture("channels.jinja"), "t", 0)
                                .render(input({user("Time?"), calling("", "clock", {{"zone", "UTC"}}),
                                               tool_result("14:45"), assistant("Late.")}));
  const std::string text = masked(chat, options);
  EXPECT_EQ(
      text.substr(text.find("<|start|>user")),
      "<|start|>user<|message|>Time?<|end|><|start|>assistant« to=functions.clock<|channel|>commentary json"
      "<|message|>{\"zone\": \"UTC\"}<|call|>»<|start|>functions.clock to=assistant<|channel|>commentary<|message|>"
      "\"14:45\"<|end|><|start|>assistant«<|channel|>final<|message|>Late.<|return|>»");
}

TEST(ChatMask, ATurnEndsAtASpecialTokenWhenTheEndTokenIsAnother) {
  MaskOptions options = chatml_options();
  options.end_tokens = {"<|endoftext|>"};
  EXPECT_EQ(masked(fixture("chatml.jinja"), input({user("Hi"), assistant("Hello")}), options),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Hello<|im_end|>»\n");
}

TEST(ChatMask, WithoutAnyEndOfTurnTheRangeSaysSo) {
  const RenderedChat chat = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "t")
                                .render(input({user("Hi"), assistant("Hello"), user("Bye")}));
  EXPECT_EQ(masked(chat, chatml_options()), "user: Hi\nassistant: «Hello»\nuser: Bye\n");
  EXPECT_FALSE(supervised_ranges(chat, chatml_options()).front().ends_turn);
  const RenderedChat ended = ChatTemplate(fixture("chatml.jinja"), "t").render(input({user("Hi"), assistant("Hello")}));
  EXPECT_TRUE(supervised_ranges(ended, chatml_options()).front().ends_turn);
}

TEST(ChatMask, ALoopOverNumbersIsMaskedByProvenanceAlone) {
  MaskOptions options;
  options.end_tokens = {"</s>"};
  EXPECT_EQ(
      masked(
          "{% for i in range(messages | length) %}<{{ messages[i].role }}>{{ messages[i].content }}</s>\n{% endfor %}",
          input({user("Hi"), assistant("Hello"), user("Bye"), assistant("Ciao")}), options),
      "<user>Hi</s>\n<assistant>«Hello</s>»\n<user>Bye</s>\n<assistant>«Ciao</s>»\n");
}

TEST(ChatMask, ALoopOverPairsIsMaskedByProvenanceAlone) {
  MaskOptions options;
  options.end_tokens = {"</s>"};
  EXPECT_EQ(masked("{% for m in messages[::2] %}Q: {{ m.content }} A: {{ messages[2 * loop.index0 + 1].content }}</s>\n"
                   "{% endfor %}",
                   input({user("Hi"), assistant("Hello"), user("Bye"), assistant("Ciao")}), options),
            "Q: Hi A: «Hello</s>»\nQ: Bye A: «Ciao</s>»\n");
}

TEST(ChatMask, AnAnswerThatShowsNothingHasNoRange) {
  const RenderedChat chat = ChatTemplate(fixture("chatml.jinja"), "t").render(input({user("Hi"), assistant("")}));
  EXPECT_TRUE(supervised_ranges(chat, chatml_options()).empty());
  EXPECT_TRUE(supervised_ranges(chat, chatml_options(TrainOn::kLast)).empty());
  EXPECT_TRUE(supervised_ranges(chat, chatml_options(TrainOn::kCompletion)).empty());
}

TEST(ChatMask, TrimmedAndSplitContentStaysSupervised) {
  MaskOptions options;
  options.special_tokens = {"<end_of_turn>"};
  EXPECT_EQ(masked(fixture("turns.jinja"), input({user(" Hi "), assistant("  two\nlines \n")}), options),
            "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n«two\nlines<end_of_turn>»\n");
}

TEST(ChatMask, TheGenerationMarkIsReportedButNotNeeded) {
  const RenderedChat chat =
      ChatTemplate(fixture("generation.jinja"), "t").render(input({user("Hi"), assistant("Hello")}));
  MaskOptions options;
  options.special_tokens = {"<|end|>"};
  EXPECT_EQ(masked(chat, options), "<|user|>\nHi<|end|>\n<|assistant|>\n«Hello<|end|>»\n");
  std::string inside;
  for (const Span& span : chat.spans) {
    if (span.generation) inside += chat.text.substr(span.begin, span.end - span.begin);
  }
  EXPECT_EQ(inside, "Hello<|end|>");
}

}  // namespace
}  // namespace hone
