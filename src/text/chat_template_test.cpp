#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/base/error.h"
#include "core/text/json.h"
#include "text/chat_mask.h"
#include "text/chat_template.h"
#include "text/thinking.h"

namespace hone {
namespace {

ChatInput question(const std::string& text) {
  ChatInput input;
  input.messages->push_back({{"role", "user"}, {"content", text}});
  return input;
}

/// "kind message text" for each section of one provenance.
std::string spans(const RenderedChat& chat) {
  static constexpr const char* kNames[] = {"template",  "variable", "role",  "content",
                                           "reasoning", "call",     "field", "quote"};
  std::string result;
  std::string previous;
  for (const Span& span : chat.spans) {
    const std::string history =
        std::string(kNames[static_cast<int>(span.kind)]) + " " + std::to_string(span.message_index) + " ";
    if (history == previous) result.pop_back();  // content with non-contiguous characters
    result += (history == previous ? "" : history) + chat.text.substr(span.begin, span.end - span.begin) + "\n";
    previous = history;
  }
  return result;
}

TEST(ChatTemplate, SpansSayWhereTextCameFrom) {
  ChatInput input = question("Hi");
  input.messages->push_back({{"role", "assistant"},
                             {"content", {{{"type", "text"}, {"text", "Yo"}}}},
                             {"thinking", "Hm"},
                             {"name", "Bob"},
                             {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", {{"a", 1}}}}}}}}});
  input.variables = Json{{"bos_token", "<s>"}};
  const ChatTemplate chat_template(
      "{{ bos_token }}start{% for m in messages %}({{ m.role }}:{{ m.content if m.content is string else "
      "m.content[0].text }}{{ m.thinking }}{{ m.name }}{% for c in m.tool_calls %}[{{ c.function | tojson }}]"
      "{% endfor %}{% endfor %}",
      "t");
  EXPECT_EQ(spans(chat_template.render(input)),
            "variable -1 <s>\ntemplate -1 start\n"
            "template 0 (\nrole 0 user\ntemplate 0 :\ncontent 0 Hi\n"
            "template 1 (\nrole 1 assistant\ntemplate 1 :\ncontent 1 Yo\nreasoning 1 Hm\nfield 1 Bob\ntemplate 1 [\n"
            "call 1 {\"name\": \"f\", \"arguments\": {\"a\": 1}}\ntemplate 1 ]\n");
}

TEST(ChatTemplate, ContentSaysWhichOfItsBytesAreShown) {
  ChatInput input = question("  trimmed and [cut] out  ");
  const RenderedChat chat =
      ChatTemplate("{{ messages[0].content.strip().split('[cut]') | join('|') }}", "t").render(input);
  ASSERT_EQ(chat.text, "trimmed and | out");
  ASSERT_EQ(chat.spans.size(), 3u);
  EXPECT_EQ(chat.spans[0].content_offset, 2u);
  EXPECT_EQ(chat.spans[1].kind, SpanKind::kTemplate);
  EXPECT_EQ(chat.spans[2].content_offset, 19u);  // after "[cut]"
}

TEST(ChatTemplate, CharactersShownAgainAreNotTheMessageItself) {
  ChatInput input = question("Hi");
  input.messages->push_back({{"role", "assistant"}, {"content", "a\n\"b"}});
  EXPECT_EQ(spans(ChatTemplate("{% for m in messages %}{{ m.content | tojson }}{{ m.content[:1] }};"
                               "{{ messages[0].content }}{% endfor %}",
                               "t")
                      .render(input)),
            "content 0 \"Hi\"\nfield 0 H\ntemplate 0 ;\nfield 0 Hi\n"
            "content 1 \"a\\n\\\"b\"\nfield 1 a\ntemplate 1 ;\nquote 0 Hi\n");
  EXPECT_EQ(spans(ChatTemplate("{% for m in messages[::2] %}{{ m.content }}>{{ messages[loop.index].content }}"
                               "{% endfor %}",
                               "t")
                      .render(input)),
            "content 0 Hi\ntemplate 0 >\ncontent 1 a\n\"b\n");
}

TEST(ChatTemplate, AbsentToolsAreNoneAndOtherNamesUndefined) {
  const ChatTemplate chat_template(
      "{{ tools is none }} {{ documents is none }} {{ enable_thinking is defined }} {{ add_generation_prompt }}", "t");
  EXPECT_EQ(chat_template.render(question("Hi")).text, "True True False False");
  ChatInput input = question("Hi");
  input.tools = Json::array({Json::object()});
  input.variables["enable_thinking"] = false;
  input.add_generation_prompt = true;
  EXPECT_EQ(chat_template.render(input).text, "False True True True");
}

TEST(ChatTemplate, KeysKeepTheirOrderInJson) {
  ChatInput input = question("Hi");
  input.tools = Json::parse(R"([{"z": 1, "a": {"y": [true, null], "b": 1.0}}])");
  EXPECT_EQ(ChatTemplate("{{ tools[0] | tojson }}", "t").render(input).text,
            R"({"z": 1, "a": {"y": [true, null], "b": 1.0}})");
}

/// The rendering of one call, whose arguments are `arguments`.
std::string with_arguments(const char* source, const Json& arguments) {
  ChatInput input = question("Hi");
  const Json function = {{"name", "f"}, {"arguments", arguments}};
  input.messages->push_back({{"role", "assistant"},
                             {"content", nullptr},
                             {"tool_calls", Json::array({{{"type", "function"}, {"function", function}}})}});
  return ChatTemplate(source, "t").render(input).text;
}

TEST(ChatTemplate, ArgumentsOfACallAreTheSameAsAnObjectAndAsItsJson) {
  const Json object = Json::parse(R"({"city": "Rom\"e", "days": 2, "near": {"x": [1.0, true]}})");
  const std::string call = "{% set a = messages[1].tool_calls[0].function.arguments %}";
  const std::string json = R"({"city": "Rom\"e", "days": 2, "near": {"x": [1.0, true]}})";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{{ a | tojson }}", json},
      {"{{ a }}", json},
      {"{{ 'f' + a + ';' }}", "f" + json + ";"},
      {"{{ a ~ 1 }}", json + "1"},
      {"{{ a | string | length }}", std::to_string(json.size())},
      {"{{ a.strip() }}{{ a.startswith('{') }}", json + "True"},
      {"{{ a[:3] }}", "{\"c"},
      {"{{ '%s' % a }}", json},
      {"{% for k, v in a.items() %}{{ k }}={{ v }};{% endfor %}", "city=Rom\"e;days=2;near={'x': [1.0, True]};"},
      {"{{ a.city }}{{ a['days'] }}{{ 'near' in a }}", "Rom\"e2True"},
      {"{% if a is string %}{{ a }}{% elif a is mapping %}{{ a | tojson }}{% endif %}", json},
      {"{{ messages[1].tool_calls | tojson }}",
       R"([{"type": "function", "function": {"name": "f", "arguments": )" + json + "}}]"},
  };
  for (const auto& [source, expected] : cases) {
    EXPECT_EQ(with_arguments((call + source).c_str(), object), expected) << source;
    EXPECT_EQ(with_arguments((call + source).c_str(), object.dump()), expected) << source;
    EXPECT_EQ(with_arguments((call + source).c_str(), object.dump(2)), expected) << source;
  }
}

TEST(ChatTemplate, ArgumentsThatAreNoJsonStayTextAndMissingOnesAreEmpty) {
  const char* source = "{{ messages[1].tool_calls[0].function.arguments | tojson }}";
  EXPECT_EQ(with_arguments(source, "Rome {"), "\"Rome {\"");
  EXPECT_EQ(with_arguments(source, "7"), "\"7\"");
  EXPECT_EQ(with_arguments(source, Json::parse(R"(["a"])")), "[\"a\"]");
  EXPECT_EQ(with_arguments(source, R"(["a"])"), "[\"a\"]");
  EXPECT_EQ(with_arguments(source, nullptr), "{}");
  EXPECT_EQ(with_arguments(source, ""), "{}");
  ChatInput input = question("Hi");  // and the forms without "function"
  input.messages->push_back({{"role", "assistant"}, {"tool_calls", {{{"name", "f"}, {"arguments", "{\"a\":1}"}}}}});
  EXPECT_EQ(ChatTemplate("{{ messages[1].tool_calls[0].arguments.a }}", "t").render(input).text, "1");
  input.messages[1] = {{"role", "assistant"}, {"function_call", {{"name", "f"}, {"arguments", "{\"a\":1}"}}}};
  EXPECT_EQ(ChatTemplate("{{ messages[1].function_call.arguments.a }}", "t").render(input).text, "1");
}

TEST(ChatTemplate, ContentThatIsNullOrMissingIsNoneAndNeverAWord) {
  ChatInput null = question("Hi"), missing = null;
  const Json calls = Json::array({{{"function", {{"name", "f"}, {"arguments", Json::object()}}}}});
  null.messages->push_back({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", calls}});
  missing.messages->push_back({{"role", "assistant"}, {"tool_calls", calls}});
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{{ c }}", ""},
      {"{{ c ~ 'x' }}{{ 'x' + c }}{{ c + 'x' }}", "xxx"},
      {"{{ c is none }}{{ c is defined }}{{ c is string }}", "TrueTrueFalse"},
      {"{{ 'a' in c }}{{ c | length }}{{ c | trim }}{{ c.split('a')[-1] }}{{ c.startswith('a') }}", "False0False"},
      {"{{ c[:5] }}{% for part in c %}x{% endfor %}", ""},
      {"{{ '%s' % c }}{{ c | replace('a', 'b') }}{{ c | default('x', true) }}{{ c or 'y' }}", "xy"},
      {"{% if c %}a{% else %}b{% endif %}", "b"},
      {"{{ messages[1] | tojson }}",
       R"({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]})"},
  };
  for (const auto& [source, expected] : cases) {
    const ChatTemplate chat_template("{% set c = messages[1].content %}" + source, "t");
    EXPECT_EQ(chat_template.render(null).text, expected) << source;
    EXPECT_EQ(chat_template.render(missing).text, expected) << source;
  }
}

TEST(ChatTemplate, NullMembersOfMessagesAndToolsAreLeftOut) {
  ChatInput input = question("Hi");
  const Json arguments = {{"city", "Rome"}, {"days", nullptr}};
  input.messages->push_back(
      {{"role", "assistant"},
       {"content", "a"},
       {"reasoning_content", nullptr},
       {"tool_calls", {{{"id", nullptr}, {"function", {{"name", "f"}, {"arguments", arguments}}}}}}});
  input.tools = Json::parse(R"([{"function": {"name": "f", "description": null, "parameters":
      {"properties": {"city": {"type": "string", "enum": null}, "query": null}}, "examples": [null]}}])");
  EXPECT_EQ(
      ChatTemplate("{{ messages[1] | tojson }}{{ messages[1].reasoning_content is defined }}", "t").render(input).text,
      R"({"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": )"
      R"({"city": "Rome"}}}]}False)");
  EXPECT_EQ(
      ChatTemplate("{{ tools[0] | tojson }}", "t").render(input).text,
      R"({"function": {"name": "f", "parameters": {"properties": {"city": {"type": "string"}}}, "examples": [null]}})");
}

TEST(ChatTemplate, ToolsThatAreShownNowhereAreCounted) {
  ChatInput input = question("Hi");
  input.tools = Json::parse(R"([{"type": "function", "function": {"name": "weather"}}, {"name": "clock"}])");
  EXPECT_EQ(ChatTemplate("{{ tools | tojson }}", "t").render(input).tools.rendered, 12u);
  const Coverage none = ChatTemplate("{{ messages[0].content }}", "t").render(input).tools;
  EXPECT_EQ(none.characters, 12u);
  EXPECT_EQ(none.rendered, 0u);
}

TEST(ChatTemplate, TimeIsFixedOnDemand) {
  const std::time_t day = 86400 * 365;
  EXPECT_EQ(ChatTemplate("{{ strftime_now('%Y') }}", "t", day).render(question("Hi")).text, "1971");
}

TEST(ChatTemplate, TheAnswerHeaderIsTheGenerationPrompt) {
  const ChatTemplate prompting(
      "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}\n<A>{{ x }}{% endif %}", "t");
  ChatInput input = question("Hi");
  EXPECT_EQ(prompting.render(input).answer_header, "<A>");
  input.variables["x"] = "!";
  EXPECT_EQ(prompting.render(input).answer_header, "<A>!");
  EXPECT_EQ(
      ChatTemplate("{% for m in messages %}{{ m.role }}>{{ m.content }}{% endfor %}", "t").render(input).answer_header,
      "assistant>");
  const ChatTemplate refusing("{% if messages[0].role != 'system' %}{{ raise_exception('No') }}{% endif %}", "t");
  input.messages[0]["role"] = "system";
  EXPECT_EQ(refusing.render(input).answer_header, std::nullopt);
}

TEST(ChatTemplate, MistakesOfTheUserAreNamed) {
  const ChatTemplate chat_template("\n{{ messages[0].content + 1 }}", "model/chat_template.jinja");
  try {
    chat_template.render(question("Hi"));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(), "chat template: '+' is not supported between 'str' and 'int'");
    EXPECT_EQ(error.where(), "model/chat_template.jinja:2");
  }
  EXPECT_THROW(ChatTemplate("{% if %}", "t"), UserError);
  ChatInput no_array;
  no_array.messages = Json::object();
  EXPECT_THROW(chat_template.render(no_array), UserError);
  ChatInput no_object;
  no_object.messages->push_back("Hi");
  EXPECT_THROW(chat_template.render(no_object), UserError);
  ChatInput reserved = question("Hi");
  reserved.variables["messages"] = 1;
  EXPECT_THROW(chat_template.render(reserved), UserError);
  ChatInput deep = question("Hi");
  for (int i = 0; i < 1000; ++i) deep.tools = Json::array({deep.tools});
  EXPECT_THROW(chat_template.render(deep), UserError);
}

TEST(ChatTemplate, OneTemplateServesManyThreads) {
  const ChatTemplate chat_template(
      "{% macro m(t) %}<{{ t }}>{% endmacro %}{% for x in messages %}{{ m(x.content) }}{% endfor %}", "t");
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const std::string text = std::to_string(1000 * static_cast<int>(t) + i);
        equal[t] += chat_template.render(question(text)).text == "<" + text + ">";
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 100));
}

/// A chat template whose prompt ends with `ending`.
ChatTemplate ending_with(const std::string& ending) {
  return {"{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}" + ending +
              "{% endif %}",
          "t"};
}

const std::string kEnableThinking =
    "<a>{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}";
const std::string kThinking = "<a>{% if thinking %}<think>{% else %}</think>{% endif %}";

TEST(ThinkingSwitch, IsFoundByRendering) {
  EXPECT_EQ(thinking_switch(ending_with(kEnableThinking), Json::object()), "enable_thinking");
  EXPECT_EQ(thinking_switch(ending_with(kThinking), Json::object()), "thinking");
  EXPECT_EQ(thinking_switch(ending_with("<a>"), Json::object()), std::nullopt);
  // The template uses the variable, but to no effect.
  EXPECT_EQ(thinking_switch(ending_with("<a>{% if enable_thinking %}{% endif %}"), Json::object()), std::nullopt);
  EXPECT_EQ(thinking_switch(ending_with("{{ raise_exception('no') }}"), Json::object()), std::nullopt);
}

TEST(ThinkingSwitch, ThePromptThinksUnlessItIsOff) {
  EXPECT_TRUE(prompt_thinks(ending_with(kEnableThinking), Json::object()));
  EXPECT_FALSE(prompt_thinks(ending_with(kEnableThinking), {{"enable_thinking", false}}));
  EXPECT_FALSE(prompt_thinks(ending_with(kThinking), Json::object()));
  EXPECT_TRUE(prompt_thinks(ending_with(kThinking), {{"thinking", true}}));
  EXPECT_TRUE(prompt_thinks(ending_with("<a><think>\n"), Json::object()));
  EXPECT_FALSE(prompt_thinks(ending_with("<a><think>\n\n</think>\n"), Json::object()));
  EXPECT_FALSE(prompt_thinks(ending_with("<a>"), Json::object()));
}

TEST(ThinkBlocks, AreThoughtsIfSomethingIsInThem) {
  EXPECT_TRUE(has_think_block("<think>hm</think>a"));
  EXPECT_TRUE(has_think_block("hm</think>a"));
  EXPECT_FALSE(has_think_block("<think>\n\n</think>\n\na"));
  EXPECT_FALSE(has_think_block("a <think> is a tag"));
  EXPECT_TRUE(is_empty_think_block("<think>\n\n</think>\n\n"));
  EXPECT_FALSE(is_empty_think_block("<think>hm</think>"));
  EXPECT_FALSE(is_empty_think_block("\n"));
}

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
  for (const Json& message : messages) chat.messages->push_back(message);
  chat.variables = Json{{"bos_token", "<s>"}, {"eos_token", "</s>"}};
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
  EXPECT_EQ(rendered.messages[1].reasoning.characters, 10u);  // "One and one." without white space
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
            "<|start|>user<|message|>Hi<|end|><|start|>assistant«<|channel|>final<|message|>Hello»<|end|>"
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

/// A turn ends where the next role's token begins, as in GLM-4.5.
constexpr const char* kNextRole =
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<|user|>\\n' + m.content }}{% elif m.role == 'tool' %}"
    "{{ '<|observation|>\\n' + m.content }}{% else %}{{ '<|assistant|>\\n' }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '\\n<tool_call>' + c.function.name }}{% for k, v in "
    "c.function.arguments.items() %}"
    "{{ '<arg_value>' }}{{ v }}{{ '</arg_value>' }}{% endfor %}{{ '\\n</tool_call>' }}{% endfor %}{% endif %}{% endfor "
    "%}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

MaskOptions next_role_options() {
  MaskOptions options;
  options.end_tokens = {"<|endoftext|>", "<|user|>", "<|observation|>"};
  options.special_tokens = {"<|endoftext|>", "<|user|>", "<|observation|>", "<|assistant|>", "</tool_call>"};
  return options;
}

/// The text with what the template leaves to the next message, and the supervised ranges in «».
std::string completed(const char* source, const ChatInput& input, const MaskOptions& options) {
  RenderedChat chat = ChatTemplate(source, "t").render(input);
  complete_last_answer(chat, options);
  return masked(chat, options);
}

TEST(ChatMask, WhereTheNextRolesTokenIsTheStopEveryAnswerLearnsItOnce) {
  const MaskOptions options = next_role_options();
  EXPECT_EQ(completed(kNextRole, input({user("2+2?"), assistant("4")}), options),
            "<|user|>\n2+2?<|assistant|>\n«4<|user|>»");
  EXPECT_EQ(completed(kNextRole, input({user("a"), assistant("4"), user("b"), assistant("6")}), options),
            "<|user|>\na<|assistant|>\n«4<|user|>»\nb<|assistant|>\n«6<|user|>»");
  const Json call = calling("", "weather", {{"city", "Rome"}});
  EXPECT_EQ(completed(kNextRole, input({user("a"), call, tool_result("sunny"), assistant("Sunny.")}), options),
            "<|user|>\na<|assistant|>\n«\n<tool_call>weather<arg_value>Rome</arg_value>\n</tool_call><|observation|>»"
            "\nsunny<|assistant|>\n«Sunny.<|user|>»");
  EXPECT_EQ(completed(kNextRole, input({user("a"), call}), options),
            "<|user|>\na<|assistant|>\n«\n<tool_call>weather<arg_value>Rome</arg_value>\n</tool_call><|observation|>»");
}

TEST(ChatMask, NothingIsAddedWhereTheTextGoesOnOrATokenEndsIt) {
  EXPECT_EQ(completed(kNextRole, input({user("a"), assistant("4"), user("b")}), next_role_options()),
            "<|user|>\na<|assistant|>\n«4<|user|>»\nb");
  const ChatInput chat = input({user("Hi"), assistant("Hello")});
  EXPECT_EQ(completed(fixture("chatml.jinja").c_str(), chat, chatml_options()),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Hello<|im_end|>»\n");
  MaskOptions unknown = next_role_options();
  unknown.end_tokens = {"<|endoftext|>"};  // generation does not stop at the next role
  EXPECT_EQ(completed(kNextRole, input({user("a"), assistant("4"), user("b")}), unknown),
            "<|user|>\na<|assistant|>\n«4»<|user|>\nb");
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

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kChatMl =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

class ChatFacts : public testing::Test {
 protected:
  /// The reduced tokenizer of Qwen3 (no bos token) with these special tokens.
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

  /// The end of a plain answer to a plain question.
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

TEST_F(ChatFacts, AProblemNamesAWayOutThatWorks) {
  const char* source =
      "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{% else %}: {% endif %}{{ m.content }}{% endfor %}";
  const Tokenizer qwen = tokenizer(R"({"eos_token": "<|endoftext|>"})");
  EXPECT_THAT(end_of(source, qwen).problem(qwen), HasSubstr("eot_tokens: ['<|im_start|>']"));
  EXPECT_THAT(end_of(kChatMl, qwen).problem(qwen), HasSubstr("eot_tokens: ['<|im_end|>']"));
  EXPECT_THAT(end_of("{% for m in messages %}{{ m.content }};{% endfor %}", qwen).problem(qwen),
              HasSubstr("give a chat_template that writes eos_token '<|endoftext|>' after an answer"));
  Tokenizer chosen = tokenizer(R"({"eos_token": "<|endoftext|>"})");
  TokenChoice choice;
  choice.eot = {"<|im_start|>"};
  chosen.choose(choice);
  ChatInput chat = input({user("q"), assistant("a")});
  RenderedChat rendered = ChatTemplate(source, "t").render(chat);
  complete_last_answer(rendered, mask_options(chosen, TrainOn::kAssistant));
  const auto ranges = supervised_ranges(rendered, mask_options(chosen, TrainOn::kAssistant));
  EXPECT_EQ(turn_end(rendered, ranges.at(0), chosen).problem(chosen), "");
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
