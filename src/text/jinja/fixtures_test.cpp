// Equality with Python's jinja2 over the files of tests/fixtures/templates (tools/make_template_fixtures.py).
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "core/json.h"
#include "text/chat_template.h"
#include "text/jinja/template.h"

namespace hone {
namespace {

std::string folder() { return std::string(HONE_SOURCE_DIR) + "/tests/fixtures/templates/"; }

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// 2031-03-03 14:45, the time of the fixtures, in this machine's zone.
std::time_t fixture_time() {
  std::tm time{};
  time.tm_year = 131;
  time.tm_mon = 2;
  time.tm_mday = 3;
  time.tm_hour = 14;
  time.tm_min = 45;
  time.tm_isdst = -1;
  return std::mktime(&time);
}

jinja::Value value_of(const Json& json) {
  using jinja::Value;
  if (json.is_string()) return Value::string(json.get<std::string>());
  if (json.is_boolean()) return Value::boolean(json.get<bool>());
  if (json.is_number_integer()) return Value::integer(json.get<int64_t>());
  if (json.is_number()) return Value::real(json.get<double>());
  if (json.is_array()) {
    std::vector<Value> items;
    for (const Json& item : json) items.push_back(value_of(item));
    return Value::list(items);
  }
  if (!json.is_object()) return Value::none();
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [key, item] : json.items()) entries.emplace_back(Value::string(key), value_of(item));
  return Value::dict(entries);
}

TEST(JinjaFixtures, SmallTemplatesGiveWhatPythonGives) {
  const Json fixture = Json::parse(file_text(folder() + "expressions.json"));
  size_t compared = 0;
  for (const Json& test : fixture["cases"]) {
    const auto source = test["template"].get<std::string>();
    std::vector<std::pair<std::string, jinja::Value>> context;
    for (const auto& [name, value] : fixture["context"].items()) context.emplace_back(name, value_of(value));
    std::optional<std::string> text;
    std::string error;
    try {
      text = jinja::Template(source, "case").render(context, {}, fixture_time()).text();
    } catch (const UserError& e) {
      error = e.what();
      EXPECT_TRUE(e.message().starts_with("chat template: ")) << e.message();
      EXPECT_TRUE(e.where().starts_with("case:")) << e.where();
      EXPECT_NE(e.where(), "case:0") << source;
    }
    if (test.contains("error")) {
      EXPECT_FALSE(text) << source << " should be refused, gives " << *text;
    } else {
      EXPECT_EQ(text, test["expected"].get<std::string>()) << source << " " << error;
    }
    ++compared;
  }
  EXPECT_GE(compared, 600u);
}

TEST(JinjaFixtures, ChatTemplatesGiveWhatPythonGives) {
  const Json fixture = Json::parse(file_text(folder() + "renderings.json"));
  size_t equal = 0;
  for (const Json& test : fixture["cases"]) {
    const auto name = test["template"].get<std::string>();
    const ChatTemplate chat_template(file_text(folder() + name), name, fixture_time());
    const Json& variant = test["variant"];
    ChatInput input;
    input.messages = fixture["conversations"][test["conversation"].get<std::string>()];
    input.variables = fixture["tokens"];
    input.add_generation_prompt = variant.value("add_generation_prompt", false);
    if (variant.contains("tools")) input.tools = variant["tools"];
    if (variant.contains("documents")) input.documents = variant["documents"];
    if (variant.contains("variables")) input.variables.update(variant["variables"]);
    SCOPED_TRACE(name + " " + test["conversation"].get<std::string>() + " " + variant.dump());
    if (test.contains("error")) {
      EXPECT_THROW(chat_template.render(input), UserError);
      continue;
    }
    try {
      const RenderedChat chat = chat_template.render(input);
      EXPECT_EQ(chat.text, test["expected"].get<std::string>());
      size_t end = 0;
      for (const Span& span : chat.spans) {
        EXPECT_EQ(span.begin, end);
        EXPECT_LT(span.begin, span.end);
        end = span.end;
      }
      EXPECT_EQ(end, chat.text.size());
      ++equal;
    } catch (const UserError& e) {
      ADD_FAILURE() << e.what();
    }
  }
  EXPECT_GE(equal, 200u);
}

}  // namespace
}  // namespace hone
