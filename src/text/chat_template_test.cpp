#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/error.h"

namespace hone {
namespace {

ChatInput question(const std::string& text) {
  ChatInput input;
  input.messages.push_back({{"role", "user"}, {"content", text}});
  return input;
}

/// "kind message text" per stretch of one history.
std::string spans(const RenderedChat& chat) {
  static constexpr const char* kNames[] = {"template",  "variable", "role",  "content",
                                           "reasoning", "call",     "field", "quote"};
  std::string result;
  std::string previous;
  for (const Span& span : chat.spans) {
    const std::string history =
        std::string(kNames[static_cast<int>(span.kind)]) + " " + std::to_string(span.message_index) + " ";
    if (history == previous) result.pop_back();  // content whose characters do not follow each other
    result += (history == previous ? "" : history) + chat.text.substr(span.begin, span.end - span.begin) + "\n";
    previous = history;
  }
  return result;
}

TEST(ChatTemplate, SpansSayWhereTextCameFrom) {
  ChatInput input = question("Hi");
  input.messages.push_back({{"role", "assistant"},
                            {"content", {{{"type", "text"}, {"text", "Yo"}}}},
                            {"thinking", "Hm"},
                            {"name", "Bob"},
                            {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", {{"a", 1}}}}}}}}});
  input.variables = {{"bos_token", "<s>"}};
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
  EXPECT_EQ(chat.spans[2].content_offset, 19u);  // behind "[cut]"
}

TEST(ChatTemplate, CharactersShownAgainAreNotTheMessageItself) {
  ChatInput input = question("Hi");
  input.messages.push_back({{"role", "assistant"}, {"content", "a\n\"b"}});
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
  no_object.messages.push_back("Hi");
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

}  // namespace
}  // namespace hone
