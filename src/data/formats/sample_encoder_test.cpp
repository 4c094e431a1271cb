#include <fmt/format.h>
#include <gmock/gmock.h>

#include "core/base/processor_time_testing.h"
#include "data/dataset/block_builder.h"
#include "data/dataset/data_testing.h"
#include "data/formats/chat_encoder.h"
#include "data/formats/message_reader.h"
#include "data/formats/sample_encoder.h"

namespace hone {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kVocab = 10'000;

EncodedRow encoded(const Tokenizer* tokenizer, const std::string& row, SampleFormat format,
                   const ChatEncoderOptions& options = {}, int64_t vocab_size = kVocab) {
  const SampleEncoder encoder(tokenizer, options, vocab_size);
  return encoder.encode(format_row(Json::parse(row), format, "d.jsonl:7"), "d.jsonl:7");
}

const Tokenizer& qwen() {
  static const Tokenizer tokenizer = qwen_tokenizer();
  return tokenizer;
}

EncodedRow chat(const std::string& row, TrainOn train_on = TrainOn::kAssistant) {
  return encoded(&qwen(), row, SampleFormat::kMessages, {.train_on = train_on});
}

std::string learnt(const EncodedRow& row) { return supervised_text(row.sample, qwen()); }

const std::string kTwoTurns = R"({"messages": [
  {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"},
  {"role": "assistant", "content": "Hi! How are you?"}, {"role": "user", "content": "Fine, bye"},
  {"role": "assistant", "content": "Good bye."}]})";

TEST(ChatMasking, SupervisesTheAssistantsTextWithItsEndOfTurnTokenAndNothingElse) {
  const EncodedRow row = chat(kTwoTurns);
  EXPECT_EQ(learnt(row), "Hi! How are you?<|im_end|>|Good bye.<|im_end|>");
  EXPECT_EQ(qwen().decode(row.sample.input_ids, false),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello there<|im_end|>\n"
            "<|im_start|>assistant\nHi! How are you?<|im_end|>\n<|im_start|>user\nFine, bye<|im_end|>\n"
            "<|im_start|>assistant\nGood bye.<|im_end|>\n");
  for (size_t i = 0; i < row.sample.labels.size(); ++i) {
    const int32_t label = row.sample.labels[i];
    EXPECT_TRUE(label == kIgnoredLabel || label == row.sample.input_ids[i]);
  }
  EXPECT_TRUE(row.nothing_learnt.empty());
  EXPECT_TRUE(row.turn_end_problem.empty());
  EXPECT_TRUE(row.sample.weights.empty());
  EXPECT_FALSE(row.partly_shown);
}

TEST(ChatMasking, TrainOnChoosesTheTurns) {
  EXPECT_EQ(learnt(chat(kTwoTurns, TrainOn::kLast)), "Good bye.<|im_end|>");
  EXPECT_EQ(learnt(chat(kTwoTurns, TrainOn::kCompletion)), "Good bye.<|im_end|>");
  const EncodedRow all = chat(kTwoTurns, TrainOn::kAll);
  EXPECT_EQ(all.sample.labels, all.sample.input_ids);
}

TEST(ChatMasking, ACompletionOfMessagesIsWhatFollowsTheLastQuestion) {
  const EncodedRow row = chat(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
      {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}, {"role": "tool", "content": "e"},
      {"role": "assistant", "content": "f"}]})",
                              TrainOn::kCompletion);
  EXPECT_EQ(learnt(row), "d<|im_end|>\n<|im_start|>tool\ne<|im_end|>\n<|im_start|>assistant\nf<|im_end|>");
}

/// A template with thinking in a separate block, empty ones too; the switch adds an empty block to the prompt.
constexpr const char* kThinking =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}"
    "<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}";

constexpr const char* kNoThoughts =
    R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";

EncodedRow thinking(const ChatEncoderOptions& changed, const std::string& row = kNoThoughts) {
  ChatEncoderOptions options = changed;
  options.chat_template = kThinking;
  return encoded(&qwen(), row, SampleFormat::kMessages, options);
}

TEST(AskedOtherwise, AnEmptyThinkBlockThatThePromptDoesNotHaveIsNamedWithTheSwitch) {
  const EncodedRow row = thinking({});
  EXPECT_EQ(learnt(row), "a<|im_end|>");
  EXPECT_EQ(row.answers, 1);
  ASSERT_EQ(row.prompt_differences.size(), 1u);
  const PromptDifference& difference = row.prompt_differences[0];
  EXPECT_EQ(difference.learnt, "<|im_start|>assistant\n<think>\n\n</think>\n\n");
  EXPECT_EQ(difference.asked, "<|im_start|>assistant\n");
  EXPECT_THAT(difference.advice, AllOf(HasSubstr("chat_template_kwargs: {enable_thinking: false}"),
                                       HasSubstr("learn_empty_thinking: true")));
}

TEST(AskedOtherwise, NothingIsSaidWhereTheyAgree) {
  EXPECT_TRUE(thinking({.chat_template_kwargs = Json{{"enable_thinking", false}}}).prompt_differences.empty());
  const EncodedRow learnt_block = thinking({.learn_empty_thinking = true});
  EXPECT_EQ(learnt(learnt_block), "<think>\n\n</think>\n\na<|im_end|>");
  EXPECT_TRUE(learnt_block.prompt_differences.empty());
  const EncodedRow thoughts = thinking({}, R"({"messages": [{"role": "user", "content": "q"},
      {"role": "assistant", "reasoning_content": "hm", "content": "a"}]})");
  EXPECT_EQ(learnt(thoughts), "<think>\nhm\n</think>\n\na<|im_end|>");
  EXPECT_EQ(thoughts.answers, 1);
  EXPECT_TRUE(thoughts.prompt_differences.empty());
  EXPECT_TRUE(chat(kTwoTurns).prompt_differences.empty());
  EXPECT_EQ(chat(kTwoTurns).answers, 2);
  EXPECT_EQ(chat(kTwoTurns, TrainOn::kAll).answers, 0);
}

TEST(AskedOtherwise, TheSwitchedPromptsBlockIsNotLearntTwice) {
  const EncodedRow row =
      thinking({.learn_empty_thinking = true, .chat_template_kwargs = Json{{"enable_thinking", false}}});
  EXPECT_EQ(learnt(row), "a<|im_end|>");
}

TEST(AskedOtherwise, AnswersOfEarlierTurnsWithoutTheBlockAreNamed) {
  const std::string turns = R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
      {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}]})";
  const ChatEncoderOptions off = {.chat_template_kwargs = Json{{"enable_thinking", false}}};
  const EncodedRow row = thinking(off, turns);
  EXPECT_EQ(row.answers, 2);
  ASSERT_EQ(row.prompt_differences.size(), 1u);
  EXPECT_EQ(row.prompt_differences[0].learnt, "<|im_start|>assistant\n");
  EXPECT_THAT(row.prompt_differences[0].advice, HasSubstr("train_on: last"));
  ChatEncoderOptions last = off;
  last.train_on = TrainOn::kLast;
  EXPECT_TRUE(thinking(last, turns).prompt_differences.empty());
}

TEST(AskedOtherwise, CompletionsAndSamplesOfTheirOwnAreCompared) {
  EXPECT_EQ(thinking({.train_on = TrainOn::kCompletion}).prompt_differences.size(), 1u);
  const EncodedRow pair = encoded(&qwen(), R"({"prompt": [{"role": "user", "content": "q"}],
      "completion": [{"role": "assistant", "content": "a"}]})",
                                  SampleFormat::kPromptCompletion, {.chat_template = kThinking});
  EXPECT_EQ(pair.prompt_differences.size(), 1u);
}

TEST(AskedOtherwise, APromptThatOpensThoughtsIsNamedWhereThereAreNone) {
  const EncodedRow row = encoded(&qwen(), kNoThoughts, SampleFormat::kMessages,
                                 {.chat_template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
                                                   "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}"
                                                   "<|im_start|>assistant\n<think>\n{% endif %}"});
  ASSERT_EQ(row.prompt_differences.size(), 1u);
  EXPECT_EQ(row.prompt_differences[0].asked, "<|im_start|>assistant\n<think>\n");
  EXPECT_EQ(row.prompt_differences[0].learnt, "<|im_start|>assistant\n");
  EXPECT_THAT(row.prompt_differences[0].advice, HasSubstr("chat_template"));
}

TEST(AskedOtherwise, APromptThatDependsOnTheMessagesIsAskedForWithThem) {
  // No header after the result of a tool.
  const char* after_tools =
      "{% for m in messages %}{% if m.role == 'tool' %}[{{ m.content }}]{% elif m.role == 'user' %}<|im_start|>"
      "{{ m.content }}{% elif loop.index0 > 0 and messages[loop.index0 - 1].role == 'tool' %}{{ m.content }}<|im_end|>"
      "{% else %}<answer>{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
      "{% if add_generation_prompt and messages[-1].role != 'tool' %}<answer>{% endif %}";
  const EncodedRow row = encoded(&qwen(), R"({"messages": [{"role": "user", "content": "q"},
      {"role": "assistant", "content": "call"}, {"role": "tool", "content": "5"},
      {"role": "assistant", "content": "five"}]})",
                                 SampleFormat::kMessages, {.chat_template = after_tools});
  EXPECT_EQ(row.answers, 2);
  EXPECT_TRUE(row.prompt_differences.empty());
}

TEST(ChatMasking, MessagesWithoutWeightAreNotLearnt) {
  const EncodedRow row = chat(R"({"messages": [{"role": "user", "content": "q"},
      {"role": "assistant", "content": "one", "train": false}, {"role": "user", "content": "q"},
      {"role": "assistant", "content": "two", "weight": 0.25}, {"role": "assistant", "content": "three"}]})");
  EXPECT_EQ(learnt(row), "two<|im_end|>|three<|im_end|>");
  ASSERT_EQ(row.sample.weights.size(), row.sample.labels.size());
  float sum = 0;
  for (size_t i = 0; i < row.sample.labels.size(); ++i) {
    if (row.sample.labels[i] != kIgnoredLabel) sum += row.sample.weights[i];
  }
  const auto tokens = [](const char* text) { return static_cast<float>(qwen().encode(text, false).size()); };
  EXPECT_FLOAT_EQ(sum, 0.25f * tokens("two<|im_end|>") + tokens("three<|im_end|>"));
}

TEST(ChatMasking, WeightsCountUnderTrainOnAllToo) {
  const EncodedRow row = chat(R"({"messages": [{"role": "user", "content": "question", "weight": 0},
      {"role": "assistant", "content": "answer"}]})",
                              TrainOn::kAll);
  EXPECT_EQ(learnt(row), "<|im_start|>assistant\nanswer<|im_end|>\n");
}

TEST(ChatMasking, AConversationWithoutAnythingToLearnSaysWhy) {
  const EncodedRow unanswered =
      chat(R"({"messages": [{"role": "user", "content": "q"}, {"role": "gpt", "content": "a"}]})");
  EXPECT_EQ(unanswered.nothing_learnt, "no message has the role 'assistant' (roles: user, gpt)");
  EXPECT_FALSE(unanswered.masked_by_data);
  const EncodedRow masked =
      chat(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "loss": 0}]})");
  EXPECT_EQ(masked.nothing_learnt, "every supervised message has the weight 0");
  EXPECT_TRUE(masked.masked_by_data);
  const EncodedRow hidden = encoded(&qwen(), kTwoTurns, SampleFormat::kMessages,
                                    {.chat_template = "{% for m in messages %}{{ m.role }}: ?\n{% endfor %}"});
  EXPECT_THAT(hidden.nothing_learnt, HasSubstr("the template renders nothing of the assistant's supervised messages"));
}

TEST(ChatMasking, OtherRolesThatAskToBeLearntAreReported) {
  const std::string row = R"({"messages": [{"role": "user", "content": "q", "train": true},
      {"role": "assistant", "content": "a"}]})";
  EXPECT_TRUE(chat(row).other_roles_ask);
  EXPECT_FALSE(chat(row, TrainOn::kAll).other_roles_ask);
}

TEST(ChatMasking, ToolCallsAreLearntWithTheThoughtsBeforeThem) {
  const EncodedRow row =
      encoded(&qwen(), R"({"messages": [{"role": "user", "content": "r"},
      {"role": "assistant", "content": "two", "reasoning_content": "hence",
       "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}]})",
              SampleFormat::kMessages, {.chat_template = read_fixture("templates/think_tools.jinja")});
  EXPECT_EQ(learnt(row),
            "<think>\nhence\n</think>\n\ntwo\n<tool_call>\n"
            "{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call><|im_end|>");
  EXPECT_FALSE(row.partly_shown);
}

TEST(ChatMasking, WhatTheTemplateShowsNowhereIsReported) {
  const EncodedRow row = chat(R"({"messages": [{"role": "user", "content": "q"},
      {"role": "assistant", "content": "one", "reasoning_content": "because"}]})");  // ChatML renders no reasoning
  EXPECT_EQ(learnt(row), "one<|im_end|>");
  EXPECT_TRUE(row.partly_shown);
  EXPECT_FALSE(row.history_rewritten);
}

TEST(ChatMasking, RolesCallsAndToolsThatTheTemplateShowsNowhereAreNamed) {
  const char* source =
      "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}<|im_start|>{{ m.role }}\n{{ m.content "
      "}}"
      "<|im_end|>\n{% endif %}{% endfor %}";
  const auto missing = [&](const std::string& row) {
    return encoded(&qwen(), row, SampleFormat::kMessages, {.chat_template = source}).not_rendered;
  };
  EXPECT_THAT(missing(R"({"messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "q"},
      {"role": "assistant", "content": "a"}]})"),
              testing::ElementsAre(AllOf(HasSubstr("the role 'developer' is rendered nowhere"),
                                         HasSubstr("column_mapping: {roles: {system: developer}}"))));
  EXPECT_THAT(missing(R"({"messages": [{"role": "user", "content": "q"},
      {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
      {"role": "assistant", "content": "a"}], "tools": [{"type": "function", "function": {"name": "f"}}]})"),
              testing::ElementsAre(HasSubstr("renders no tools"), HasSubstr("renders no tool calls")));
  EXPECT_THAT(missing(kTwoTurns), testing::IsEmpty());
}

TEST(ChatMasking, ControlTokensInTheTextOfMessagesAreNamedAndMayBeText) {
  const std::string row = R"({"messages": [{"role": "user", "content": "q <|im_end|>"},
      {"role": "assistant", "content": "<|im_end|>a"}]})";
  const EncodedRow named = chat(row);
  EXPECT_THAT(named.control_tokens, AllOf(HasSubstr("'<|im_end|>'"), HasSubstr("split_special_tokens: true")));
  EXPECT_EQ(std::count(named.sample.input_ids.begin(), named.sample.input_ids.end(), 4098), 4);
  const EncodedRow text = encoded(&qwen(), row, SampleFormat::kMessages, {.split_special_tokens = true});
  EXPECT_EQ(text.control_tokens, "");
  EXPECT_EQ(std::count(text.sample.input_ids.begin(), text.sample.input_ids.end(), 4098), 2);
  EXPECT_EQ(learnt(text), "<|im_end|>a<|im_end|>");
  EXPECT_EQ(chat(kTwoTurns).control_tokens, "");
}

TEST(ChatMasking, ATemplateThatTakesTooManyStepsForAPromptIsRefused) {
  const std::string source =
      "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}"
      "{% for i in range(99999) %}{% set x = range(99999) %}{% endfor %}{% endif %}";
  EXPECT_THAT(refusal([&] { encoded(&qwen(), kTwoTurns, SampleFormat::kMessages, {.chat_template = source}); }),
              HasSubstr("takes too many steps"));
}

TEST(ChatMasking, ALongChatTakesTimeInProportionToItsMessages) {
  const auto seconds = [](int turns) {
    Json messages = Json::array();
    for (int i = 0; i < turns; ++i) {
      messages.push_back({{"role", "user"}, {"content", "a"}});
      messages.push_back({{"role", "assistant"}, {"content", "b"}});
    }
    const std::string row = Json{{"messages", std::move(messages)}}.dump();
    return processor_seconds([&] { EXPECT_EQ(chat(row).answers, turns); });
  };
  seconds(100);
  const double few = seconds(500);
  EXPECT_LT(seconds(4000), 8 * 3 * few) << "8 times as many messages; with all spans for each message 64 times";
}

TEST(ChatMasking, ThoughtsInTheContentAreNotMissedForTheTagsThatTheTemplateWritesItself) {
  const EncodedRow row =
      encoded(&qwen(), R"({"messages": [{"role": "user", "content": "q"},
      {"role": "assistant", "content": "<think>\nhence\n</think>\n\ntwo"}]})",
              SampleFormat::kMessages, {.chat_template = read_fixture("templates/think_tools.jinja")});
  EXPECT_EQ(learnt(row), "<think>\nhence\n</think>\n\ntwo<|im_end|>");
  EXPECT_FALSE(row.partly_shown);
}

TEST(ChatMasking, ATokenAcrossTheSeamIsNotLearnt) {
  // The space that ends the header and the answer's first word are one token, which begins in the header.
  ASSERT_EQ(qwen().encode(": the", false).size(), 2u);
  const EncodedRow row = encoded(
      &qwen(), R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "the end"}]})",
      SampleFormat::kMessages,
      {.chat_template = "{% for m in messages %}{{ m.role + ': ' + m.content + '<|im_end|>' }}{% endfor %}"});
  EXPECT_EQ(learnt(row), " end<|im_end|>");
}

TEST(ChatMasking, TemplateVariablesComeFromTokenizerOptionsAndRow) {
  const ChatEncoderOptions options{.train_on = TrainOn::kAll,
                                   .chat_template = "{{ eos_token }}{{ a }}{{ b }}",
                                   .chat_template_kwargs = Json{{"a", "x"}, {"b", "y"}}};
  const EncodedRow row = encoded(&qwen(), R"({"messages": [{"role": "user", "content": "q"}],
      "chat_template_kwargs": {"b": "z"}})",
                                 SampleFormat::kMessages, options);
  EXPECT_EQ(qwen().decode(row.sample.input_ids, false), "<|im_end|>xz");
}

TEST(ChatMasking, EndsOfTurnAreChecked) {
  const std::string row = R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";
  const auto problem = [&](const Tokenizer& tokenizer, const std::string& text) {
    return encoded(&tokenizer, row, SampleFormat::kMessages, {.chat_template = text}).turn_end_problem;
  };
  const std::string chatml = read_fixture("templates/chatml.jinja");
  EXPECT_EQ(problem(qwen(), chatml), "");
  const Tokenizer other = fixture_tokenizer("qwen3", {{"eos_token", "<|endoftext|>"}});
  EXPECT_THAT(problem(other, chatml), AllOf(HasSubstr("answers end with '<|im_end|>'"), HasSubstr("will not stop")));
  const Tokenizer both = fixture_tokenizer("qwen3", {{"eos_token", "<|endoftext|>"}}, {{"eos_token_id", {4096, 4098}}});
  EXPECT_EQ(problem(both, chatml), "");
  EXPECT_THAT(problem(qwen(), "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"),
              HasSubstr("without an end-of-turn token"));
  EXPECT_THAT(problem(qwen(), "{% for m in messages %}{{ m.role + ': ' + m.content + '</end>\n' }}{% endfor %}"),
              AllOf(HasSubstr("'</end>', which is "), HasSubstr(" tokens")));
}

TEST(ChatMasking, TemplateErrorsNameTheRow) {
  const std::string error = refusal([] {
    encoded(&qwen(), kTwoTurns, SampleFormat::kMessages,
            {.chat_template = "{{ raise_exception('no system') }}", .chat_template_name = "mine.jinja"});
  });
  EXPECT_THAT(error, AllOf(HasSubstr("no system"), HasSubstr("where: d.jsonl:7, at mine.jinja:1")));
}

TEST(ChatMasking, NeedsATemplate) {
  const Tokenizer bare = fixture_tokenizer("qwen3", Json::object());
  EXPECT_THAT(refusal([&] { encoded(&bare, kTwoTurns, SampleFormat::kMessages); }),
              AllOf(HasSubstr("no chat template"), HasSubstr("d.jsonl:7"), HasSubstr("chat_template_file")));
}

TEST(ChatMasking, DoubledBosIsReported) {
  const Tokenizer tokenizer = fixture_tokenizer("qwen3", {{"eos_token", "<|im_end|>"}, {"bos_token", "<|endoftext|>"}});
  const auto doubled = [&](const std::string& start) {
    const std::string text = start + "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}";
    return encoded(&tokenizer, kTwoTurns, SampleFormat::kMessages, {.chat_template = text}).doubled_bos;
  };
  EXPECT_TRUE(doubled("{{ bos_token }}<|endoftext|>"));
  EXPECT_FALSE(doubled("{{ bos_token }}"));
}

TEST(CompletionEncoding, ConversationsLearnTheirCompletionOnly) {
  const std::string row = R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
      {"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]})";
  for (const TrainOn train_on : {TrainOn::kAssistant, TrainOn::kLast}) {
    const EncodedRow encoded_row = encoded(&qwen(), row, SampleFormat::kPromptCompletion, {.train_on = train_on});
    EXPECT_EQ(learnt(encoded_row), "d<|im_end|>");
  }
  EXPECT_EQ(learnt(encoded(&qwen(), row, SampleFormat::kPromptCompletion, {.train_on = TrainOn::kCompletion})),
            "d<|im_end|>");
}

TEST(CompletionEncoding, TextIsSplitExactlyAtTheSeamAndEndsWithEos) {
  const EncodedRow row =
      encoded(&qwen(), R"({"prompt": "Question: one ", "completion": " answer"})", SampleFormat::kPromptCompletion);
  EXPECT_EQ(learnt(row), " answer<|im_end|>");
  const std::vector<int32_t> prompt = qwen().encode("Question: one ", false);
  ASSERT_GT(row.sample.input_ids.size(), prompt.size());
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), row.sample.input_ids.begin()));
}

TEST(CompletionEncoding, EosIsNotDoubled) {
  const EncodedRow row =
      encoded(&qwen(), R"({"prompt": "a", "completion": "b<|im_end|>"})", SampleFormat::kPromptCompletion);
  EXPECT_EQ(learnt(row), "b<|im_end|>");
}

TEST(CompletionEncoding, TrainOnAllLearnsThePromptToo) {
  const EncodedRow row = encoded(&qwen(), R"({"prompt": "a", "completion": "b"})", SampleFormat::kPromptCompletion,
                                 {.train_on = TrainOn::kAll});
  EXPECT_EQ(row.sample.labels, row.sample.input_ids);
}

TEST(CompletionEncoding, TokenizersThatPutASpaceInFrontEncodeTheWholeText) {
  const Tokenizer mixtral = fixture_tokenizer("mixtral", {{"eos_token", "</s>"}, {"bos_token", "<s>"}});
  const EncodedRow row =
      encoded(&mixtral, R"({"prompt": "Hello", "completion": " world"})", SampleFormat::kPromptCompletion);
  std::vector<int32_t> expected = mixtral.encode("Hello world", true);
  EXPECT_EQ(expected.front(), *mixtral.special_tokens().bos);
  expected.push_back(*mixtral.special_tokens().eos);
  EXPECT_EQ(row.sample.input_ids, expected);
  EXPECT_EQ(supervised_text(row.sample, mixtral), "world</s>");
  EXPECT_FALSE(row.doubled_bos);
}

TEST(TokenizedEncoding, NeedsNoTokenizerAndKeepsWhatItIsGiven) {
  const EncodedRow row =
      encoded(nullptr, R"({"input_ids": [1, 2, 3], "labels": [-100, 2, 3]})", SampleFormat::kTokenized);
  EXPECT_THAT(row.sample.labels, testing::ElementsAre(kIgnoredLabel, 2, 3));
  EXPECT_THAT(
      refusal([] { encoded(nullptr, R"({"prompt": "", "completion": "a"})", SampleFormat::kPromptCompletion); }),
      HasSubstr("no tokenizer.json"));
  EXPECT_FALSE(encoded(nullptr, R"({"input_ids": [1, 2], "labels": [1, -100]})", SampleFormat::kTokenized)
                   .nothing_learnt.empty());
}

TEST(TokenizedEncoding, IdsOutsideTheVocabularyAreRefused) {
  const auto error = [](const std::string& row) {
    return refusal([&] { encoded(nullptr, row, SampleFormat::kTokenized, {}, 100); });
  };
  EXPECT_THAT(error(R"({"input_ids": [1, 100]})"),
              AllOf(HasSubstr("input_ids[1] is 100, not in the model's vocabulary of 100"), HasSubstr("d.jsonl:7")));
  EXPECT_THAT(error(R"({"input_ids": [1, -1]})"), HasSubstr("input_ids[1] is -1"));
  EXPECT_THAT(error(R"({"input_ids": [1, 2], "labels": [1, 100]})"), HasSubstr("labels[1] is 100"));
  EXPECT_EQ(error(R"({"input_ids": [1, 99]})"), "");
  const std::string text = refusal([] { encoded(&qwen(), kTwoTurns, SampleFormat::kMessages, {}, 4097); });
  EXPECT_THAT(text, AllOf(HasSubstr("token id 4097 ('<|im_start|>')"), HasSubstr("the model's own tokenizer")));
}

EncodedRow encoded_thoughts(const std::string& row, ChatEncoderOptions options,
                            SampleFormat format = SampleFormat::kMessages) {
  options.chat_template = read_fixture("templates/think_tools.jinja");
  const SampleEncoder encoder(&qwen(), options, 10'000);
  return encoder.encode(format_row(Json::parse(row), format, "d.jsonl:7"), "d.jsonl:7");
}

std::string learnt(const Sample& sample) { return supervised_text(sample, qwen()); }
std::string text(const Sample& sample) { return qwen().decode(sample.input_ids, false); }

/// Thinking in fields and in the content; the template renders only that after the last question.
const std::string kThoughtful = R"({"messages": [
  {"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1", "reasoning_content": "t1"},
  {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2"},
  {"role": "user", "content": "q3"}, {"role": "assistant", "content": "<think>\nt3\n</think>\n\na3"},
  {"role": "user", "content": "q4"}, {"role": "assistant", "content": "a4", "reasoning_content": "t4"}]})";

/// Two answers of one turn, with a tool between them: the template renders the thinking of both until the next
/// question.
const std::string kAgent = R"({"messages": [
  {"role": "user", "content": "q1"},
  {"role": "assistant", "content": "", "reasoning_content": "t1",
   "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
  {"role": "tool", "content": "r1"}, {"role": "assistant", "content": "a1", "reasoning_content": "t2"},
  {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2", "reasoning_content": "t3"}]})";

TEST(RewrittenTurns, AreEachLearntInASampleThatEndsWithThem) {
  const EncodedRow row = encoded_thoughts(kThoughtful, {});
  EXPECT_EQ(learnt(row.sample), "a2<|im_end|>|<think>\nt4\n</think>\n\na4<|im_end|>");
  ASSERT_EQ(row.expanded.size(), 2u);
  EXPECT_EQ(learnt(row.expanded[0]), "<think>\nt1\n</think>\n\na1<|im_end|>");
  EXPECT_EQ(text(row.expanded[0]),
            "<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\n<think>\nt1\n</think>\n\na1<|im_end|>\n");
  EXPECT_EQ(learnt(row.expanded[1]), "<think>\nt3\n</think>\n\na3<|im_end|>");
  EXPECT_THAT(text(row.expanded[1]), HasSubstr("assistant\na1<|im_end|>"));  // as rendered at that point
  EXPECT_TRUE(row.history_rewritten);
  EXPECT_FALSE(row.partly_shown);
}

TEST(RewrittenTurns, OfOneTurnShareASample) {
  const EncodedRow row = encoded_thoughts(kAgent, {});
  EXPECT_EQ(learnt(row.sample), "<think>\nt3\n</think>\n\na2<|im_end|>");
  ASSERT_EQ(row.expanded.size(), 1u);
  EXPECT_EQ(
      learnt(row.expanded[0]),
      "<think>\nt1\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call><|im_end|>|"
      "<think>\nt2\n</think>\n\na1<|im_end|>");
}

TEST(RewrittenTurns, EveryAnswerIsLearntOnceWhateverThePolicyKeeps) {
  // Together, all samples supervise the characters of all answers: none twice, none missing.
  for (const std::string& conversation : {kThoughtful, kAgent}) {
    const EncodedRow row = encoded_thoughts(conversation, {});
    std::string all = learnt(row.sample);
    for (const Sample& sample : row.expanded) all += learnt(sample);
    const Json messages = Json::parse(conversation)["messages"];
    for (const char* part : {"t1", "t3", "a1", "a2"}) {
      const size_t at = all.find(part);
      ASSERT_NE(at, std::string::npos) << part;
      EXPECT_EQ(all.find(part, at + 1), std::string::npos) << part;
    }
  }
}

TEST(RewrittenTurns, AreNotLearntUnderMask) {
  const EncodedRow row = encoded_thoughts(kThoughtful, {.history_rewrites = HistoryRewrites::kMask});
  EXPECT_EQ(learnt(row.sample), "a2<|im_end|>|<think>\nt4\n</think>\n\na4<|im_end|>");
  EXPECT_TRUE(row.expanded.empty());
  EXPECT_TRUE(row.history_rewritten);
}

TEST(RewrittenTurns, AreRefusedUnderError) {
  const auto options = ChatEncoderOptions{.history_rewrites = HistoryRewrites::kError};
  EXPECT_THAT(refusal([&] { encoded_thoughts(kThoughtful, options); }),
              AllOf(HasSubstr("messages[1]"), HasSubstr("d.jsonl:7"), HasSubstr("history_rewrites: expand")));
  EXPECT_EQ(refusal([&] {
              encoded_thoughts(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
                         {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})",
                               options);
            }),
            "");
}

TEST(RewrittenTurns, ConcernOnlyAnswersThatAreLearnt) {
  const EncodedRow last = encoded_thoughts(kThoughtful, {.train_on = TrainOn::kLast});
  EXPECT_EQ(learnt(last.sample), "<think>\nt4\n</think>\n\na4<|im_end|>");
  EXPECT_FALSE(last.history_rewritten);
  EXPECT_FALSE(encoded_thoughts(kThoughtful, {.train_on = TrainOn::kAll}).history_rewritten);
  Json without = Json::parse(kThoughtful);
  for (const int message : {1, 5}) without["messages"][static_cast<size_t>(message)]["train"] = false;
  EXPECT_FALSE(encoded_thoughts(without.dump(), {.history_rewrites = HistoryRewrites::kError}).history_rewritten);
}

TEST(RewrittenTurns, KeepTheirWeights) {
  Json weighted = Json::parse(kThoughtful);
  weighted["messages"][1]["weight"] = 0.5;
  const EncodedRow row = encoded_thoughts(weighted.dump(), {});
  const Sample& sample = row.expanded.at(0);
  ASSERT_EQ(sample.weights.size(), sample.labels.size());
  for (size_t i = 0; i < sample.labels.size(); ++i) {
    if (sample.labels[i] != kIgnoredLabel) {
      EXPECT_EQ(sample.weights[i], 0.5f);
    }
  }
}

TEST(RewrittenTurns, OfACompletionAreLearntOnceToo) {
  const std::string row_text = R"({"prompt": [{"role": "user", "content": "q1"}], "completion": [
      {"role": "assistant", "content": "a1", "reasoning_content": "t1"}, {"role": "user", "content": "q2"},
      {"role": "assistant", "content": "a2", "reasoning_content": "t2"}]})";
  const EncodedRow row =
      encoded_thoughts(row_text, {.train_on = TrainOn::kCompletion}, SampleFormat::kPromptCompletion);
  ASSERT_EQ(row.expanded.size(), 1u);
  EXPECT_EQ(learnt(row.expanded[0]), "<think>\nt1\n</think>\n\na1<|im_end|>");
  EXPECT_THAT(learnt(row.sample), AllOf(HasSubstr("q2"), HasSubstr("t2"), Not(HasSubstr("a1"))));
}

/// `turns` questions with answers that have thoughts.
std::string long_chat(int turns) {
  Json row = {{"messages", Json::array()}};
  for (int i = 0; i < turns; ++i) {
    row["messages"].push_back({{"role", "user"}, {"content", fmt::format("question {}", i)}});
    row["messages"].push_back(
        {{"role", "assistant"}, {"content", fmt::format("answer {}", i)}, {"reasoning_content", "so"}});
  }
  return row.dump();
}

TEST(RewrittenTurns, ThatBeginBehindTheLongestSampleAreCountedAndNotMade) {
  const std::string chat = long_chat(40);
  const EncodedRow all = encoded_thoughts(chat, {});
  const size_t longest = all.sample.input_ids.size() / 3;
  const EncodedRow row = encoded_thoughts(chat, {.longest_sample = longest});
  ASSERT_EQ(all.expanded.size(), 39u);
  EXPECT_EQ(all.expanded_left_out, 0);
  EXPECT_EQ(row.expanded.size() + static_cast<size_t>(row.expanded_left_out), 39u);
  for (size_t i = 0; i < all.expanded.size(); ++i) {
    if (i < row.expanded.size()) {
      EXPECT_EQ(row.expanded[i].input_ids, all.expanded[i].input_ids);
      EXPECT_EQ(row.expanded[i].labels, all.expanded[i].labels);
    } else {
      EXPECT_GT(all.expanded[i].input_ids.size(), longest) << "none that fits is left out";
    }
  }
  EXPECT_EQ(row.sample.labels, all.sample.labels) << "they are not learnt without their thoughts";

  const EncodedRow masked =
      encoded_thoughts(chat, {.history_rewrites = HistoryRewrites::kMask, .longest_sample = longest});
  EXPECT_EQ(masked.sample.labels, all.sample.labels);
  EXPECT_EQ(masked.expanded_left_out, 0);
  EXPECT_THAT(refusal([&] {
                encoded_thoughts(chat, {.history_rewrites = HistoryRewrites::kError, .longest_sample = longest});
              }),
              HasSubstr("messages[1]"));
}

TEST(RewrittenTurns, ThatAreNotMadeCountAsTooLongOrCut) {
  const EncodedRow row = encoded_thoughts(long_chat(40), {.longest_sample = 100});
  ASSERT_GT(row.expanded_left_out, 0);
  for (const Overlength overlength : {Overlength::kDrop, Overlength::kTruncateRight}) {
    BlockBuilder builder(100, overlength);
    builder.add(row, "d.jsonl:7");
    const SampleCounts counts = builder.take().report.counts;
    EXPECT_EQ(counts.offered, 40);
    EXPECT_EQ(counts.kept + counts.too_long + counts.unsupervised, 40);
    EXPECT_EQ(counts.too_long > 0, overlength == Overlength::kDrop);
  }
}

TEST(RewrittenTurns, AreAsManyInALongerChatWhereNoMoreFit) {
  const auto samples = [](int turns) {
    return encoded_thoughts(long_chat(turns), {.longest_sample = 200}).expanded.size();
  };
  EXPECT_EQ(samples(50), samples(400)) << "each is a rendering";
}

TEST(RewrittenTurns, WhenAllAreMaskedTheRowSaysWhy) {
  const EncodedRow row = encoded_thoughts(
      R"({"messages": [{"role": "user", "content": "q"},
          {"role": "assistant", "content": "a", "reasoning_content": "t"}, {"role": "user", "content": "bye"}]})",
      {.history_rewrites = HistoryRewrites::kMask});
  EXPECT_THAT(row.nothing_learnt, HasSubstr("history_rewrites: mask"));
  EXPECT_FALSE(row.masked_by_data);
}

TEST(RewrittenTurns, AreTheRowsOnlySampleIfNothingElseIsLearnt) {
  const EncodedRow row = encoded_thoughts(
      R"({"messages": [{"role": "user", "content": "q"},
          {"role": "assistant", "content": "a", "reasoning_content": "t"}, {"role": "user", "content": "bye"}]})",
      {});
  EXPECT_EQ(learnt(row.sample), "<think>\nt\n</think>\n\na<|im_end|>");
  EXPECT_TRUE(row.expanded.empty());
  EXPECT_EQ(row.nothing_learnt, "");
}

Json row_with(const std::string& content, const Json& detail) {
  return {{"messages",
           {{{"role", "user"}, {"content", "q"}},
            {{"role", "assistant"}, {"content", content}, {"train_detail", detail}}}}};
}

Sample encoded(const Json& row, const std::string& chat_template = "") {
  const SampleEncoder encoder(&qwen(), {.chat_template = chat_template}, 10'000);
  return encoder.encode(format_row(row, SampleFormat::kMessages, "d.jsonl:7"), "d.jsonl:7").sample;
}

Json stretch(int begin, int end, const Json& train) {
  return {{"begin_offset", begin}, {"end_offset", end}, {"train", train}};
}

TEST(TrainDetail, ChoosesCharactersOfTheContent) {
  // Single letters with line ends between them are one token each.
  EXPECT_EQ(learnt(encoded(row_with("A\nB\nC\nD", Json::array({stretch(2, 3, true), stretch(6, 6, true)})))),
            "B\n|D<|im_end|>");
  EXPECT_EQ(learnt(encoded(row_with("A\nB\nC\nD", Json::array({stretch(0, 3, false), stretch(4, 6, true)})))),
            "C\nD<|im_end|>");
}

TEST(TrainDetail, CountsCharactersNotBytes) {
  EXPECT_EQ(learnt(encoded(row_with("é\n漢\nB", Json::array({stretch(4, 4, true)})))), "B<|im_end|>");
}

TEST(TrainDetail, FollowsContentThatTheTemplateTrims) {
  const std::string trimming =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}";
  EXPECT_EQ(learnt(encoded(row_with("\n\nA\nB", Json::array({stretch(4, 4, true)})), trimming)), "B<|im_end|>");
}

TEST(TrainDetail, AWeightMultipliesThatOfTheMessage) {
  Json row = row_with("A\nB", Json::array({{{"begin_offset", 0}, {"end_offset", 0}, {"weight", 0.5}}}));
  row["messages"][1]["weight"] = 0.5;
  const Sample sample = encoded(row);
  EXPECT_EQ(learnt(sample), "A|<|im_end|>");
  std::vector<float> weights;
  for (size_t i = 0; i < sample.labels.size(); ++i) {
    if (sample.labels[i] != kIgnoredLabel) weights.push_back(sample.weights[i]);
  }
  EXPECT_THAT(weights, testing::ElementsAre(0.25f, 0.5f));
}

TEST(TrainDetail, IsNotShownToTheTemplate) {
  const Sample sample = encoded(row_with("A", Json::array({stretch(0, 0, true)})),
                                "{% for m in messages %}{{ m.content }}{{ m.train_detail is defined }}<|im_end|>"
                                "{% endfor %}");
  EXPECT_EQ(qwen().decode(sample.input_ids, false), "qFalse<|im_end|>AFalse<|im_end|>");
}

TEST(TrainDetail, MistakesAreNamed) {
  const auto error = [](const Json& detail) { return refusal([&] { encoded(row_with("abc", detail)); }); };
  EXPECT_THAT(error("all"), HasSubstr("messages[1].train_detail"));
  EXPECT_THAT(error(Json::array({5})), HasSubstr("train_detail[0]"));
  EXPECT_THAT(error(Json::array({stretch(0, 3, true)})),
              HasSubstr("end_offset is 3, but the content has 3 characters"));
  EXPECT_THAT(error(Json::array({stretch(-1, 2, true)})), HasSubstr("begin_offset is -1"));
  EXPECT_THAT(error(Json::array({stretch(2, 1, true)})), HasSubstr("ends before it begins"));
  EXPECT_THAT(error(Json::array({stretch(0, 1, true), stretch(1, 2, true)})), HasSubstr("overlap"));
  EXPECT_THAT(error(Json::array({{{"begin_offset", 0}, {"end_offset", 1}}})),
              HasSubstr("neither 'train' nor 'weight'"));
  EXPECT_THAT(error(Json::array({{{"end_offset", 1}, {"train", true}}})), HasSubstr("no whole number 'begin_offset'"));
  EXPECT_THAT(error(Json::array({stretch(0, 1, "yes")})), HasSubstr("train_detail[0].train"));
  EXPECT_EQ(error(nullptr), "");
}

}  // namespace
}  // namespace hone
