// Templates come from strangers: whatever they do ends in a text or in a UserError.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "core/error.h"
#include "core/json.h"
#include "text/chat_template.h"
#include "text/jinja/template.h"

namespace hone::jinja {
namespace {

std::string render(const std::string& source, const Limits& limits = {}) {
  return Template(source, "t.jinja").render({}, limits).text();
}

/// The error of rendering `source`, as "message @ where".
std::string error_of(const std::string& source, const Limits& limits = {}) {
  try {
    return "no error: " + render(source, limits).substr(0, 100);
  } catch (const UserError& error) {
    EXPECT_FALSE(error.fix().empty());
    return error.message() + " @ " + error.where();
  }
}

std::string repeated(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

TEST(JinjaErrors, NameTheLine) {
  EXPECT_EQ(error_of("a\n\n{{ x.y }}"), "chat template: 'x' is undefined @ t.jinja:3");
  EXPECT_EQ(error_of("{% set d = {} %}\n{{ d.a.b }}"), "chat template: 'dict object' has no attribute 'a' @ t.jinja:2");
  EXPECT_EQ(error_of("\n{% if true %}\n"),
            "chat template: the block '{% if %}' is never closed with '{% endif %}' @ t.jinja:2");
  EXPECT_EQ(error_of("{{ 1 +\n }}"), "chat template: expected an expression, found '}}' @ t.jinja:2");
  EXPECT_EQ(error_of("{% for x in [1] %}\n{{ raise_exception('Only one ' ~ x) }}{% endfor %}"),
            "chat template: Only one 1 @ t.jinja:2");
  EXPECT_EQ(error_of("{{ 'a' | nofilter }}"), "chat template: there is no filter named 'nofilter' @ t.jinja:1");
  EXPECT_EQ(error_of("{% include 'x' %}"),
            "chat template: the tag '{% include %}' is not supported in chat templates @ t.jinja:1");
}

TEST(JinjaErrors, ChangingAListIsRefusedAsInTheSandbox) {
  EXPECT_EQ(error_of("{% set l = [] %}{{ l.append(1) }}"),
            "chat template: a list cannot be changed in a chat template @ t.jinja:1");
}

TEST(JinjaLimits, EndlessWorkIsStopped) {
  const std::string loops = repeated("{% for i in range(99999) %}", 4) + "x" + repeated("{% endfor %}", 4);
  EXPECT_EQ(error_of(loops, {.max_steps = 100'000}), "chat template: the template takes too many steps @ t.jinja:1");
  const std::string doubling =
      "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
  EXPECT_EQ(error_of(doubling), "chat template: the template makes a string that is too long @ t.jinja:1");
  EXPECT_EQ(error_of("{{ 'abc' * 99999999999 }}"), "chat template: a repeated string or list is too long @ t.jinja:1");
  EXPECT_EQ(error_of("{{ range(1000000) }}"), "chat template: range() of more than 100000 numbers @ t.jinja:1");
  EXPECT_EQ(error_of("{% for i in range(9999) %}{{ 'x' * 999 }}{% endfor %}", {.max_string = 100'000}),
            "chat template: the output of the template is too long @ t.jinja:1");
  EXPECT_EQ(error_of("{{ '%99999999d' % 1 }}"),
            "chat template: a width or precision in a format is too large @ t.jinja:1");
}

TEST(JinjaLimits, SharedPartsDoNotMultiplyTheWork) {
  // Each level holds the level below twice: 2^60 items for whoever walks them.
  const std::string grow =
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}";
  EXPECT_EQ(error_of(grow), "chat template: a list or dict grows too large @ t.jinja:1");
}

TEST(JinjaLimits, DepthIsBounded) {
  EXPECT_EQ(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
            "chat template: the template recurses too deep @ t.jinja:1");
  EXPECT_EQ(error_of("{{ " + repeated("(", 5000) + "1" + repeated(")", 5000) + " }}"),
            "chat template: blocks or brackets are nested too deep @ t.jinja:1");
  EXPECT_EQ(error_of("{{ " + repeated("not ", 5000) + "1 }}"),
            "chat template: blocks or brackets are nested too deep @ t.jinja:1");
  EXPECT_EQ(error_of("{{ 1" + repeated(" + 1", 5000) + " }}"),
            "chat template: an expression is nested too deep @ t.jinja:1");
  EXPECT_EQ(error_of(repeated("{% if 1 %}", 5000)),
            "chat template: blocks or brackets are nested too deep @ t.jinja:1");
  EXPECT_EQ(error_of("{% set ns = namespace(x=1) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}"),
            "chat template: lists or dicts are nested too deep @ t.jinja:1");
  EXPECT_EQ(render(repeated("{% if 1 %}", 90) + "x" + repeated("{% endif %}", 90)), "x");
}

TEST(JinjaLimits, CyclesThroughNamespacesAreCut) {
  EXPECT_EQ(render("{% set a = namespace() %}{% set a.self = [a] %}{{ a.self | length }}"), "1");
  EXPECT_EQ(render("{% set ns = namespace(x=namespace()) %}{% for i in range(20000) %}{% set ns.x = namespace(y=ns.x) "
                   "%}{% endfor %}."),
            ".");
}

TEST(JinjaLimits, AMacroOutlivesTheLoopItWasDefinedIn) {
  EXPECT_EQ(render("{% set ns = namespace() %}{% for i in range(3) %}{% macro m(x) %}{{ x }}{{ i }}{% endmacro %}"
                   "{% set ns.m = m %}{% endfor %}{{ ns.m('a') }}"),
            "a2");
}

std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string mutated(std::string text, std::mt19937& random) {
  static const std::vector<std::string> kPieces = {"{{",
                                                   "}}",
                                                   "{%",
                                                   "%}",
                                                   "{#",
                                                   "-%}",
                                                   "{%-",
                                                   " if ",
                                                   " for ",
                                                   "{% endfor %}",
                                                   "{% set x = messages %}",
                                                   "|",
                                                   ".",
                                                   "[",
                                                   "]",
                                                   "(",
                                                   ")",
                                                   "'",
                                                   "\"",
                                                   "~",
                                                   "%",
                                                   "\\",
                                                   "\n",
                                                   "\xff",
                                                   "\xf0\x9f",
                                                   "loop",
                                                   "messages",
                                                   "range(9)",
                                                   "namespace(",
                                                   "| tojson",
                                                   "| list",
                                                   ".split(",
                                                   "[::-1]",
                                                   "{% macro m(a) %}",
                                                   "{% raw %}",
                                                   " is ",
                                                   " in ",
                                                   "99999999999",
                                                   "1e999",
                                                   ","};
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % std::max<size_t>(n, 1)); };
  for (size_t i = 0, count = 1 + below(4); i < count; ++i) {
    const size_t at = below(text.size());
    const size_t size = std::min(below(20), text.size() - at);
    switch (below(5)) {
      case 0:
        text.erase(at, size);
        break;
      case 1:
        text.insert(at, kPieces[below(kPieces.size())]);
        break;
      case 2:
        text.insert(below(text.size()), text.substr(at, size));
        break;
      case 3:
        text.resize(at);
        break;
      default:
        if (!text.empty()) text[std::min(at, text.size() - 1)] = static_cast<char>(below(256));
    }
  }
  return text;
}

TEST(JinjaFuzz, MutatedTemplatesNeverCrash) {
  constexpr unsigned kSeed = 20310303;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const std::filesystem::path folder = std::string(HONE_SOURCE_DIR) + "/tests/fixtures/templates";
  std::vector<std::string> templates;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".jinja") templates.push_back(file_text(entry.path()));
  }
  const Json small = Json::parse(file_text(folder / "expressions.json"));
  for (const Json& test : small["cases"]) templates.push_back(test["template"].get<std::string>());
  ASSERT_FALSE(templates.empty());
  std::sort(templates.begin(), templates.end());
  const Value message = Value::dict({{Value::string("role"), Value::string("user")},
                                     {Value::string("content"), Value::string("<think>a</think>\n b")}});
  const std::vector<std::pair<std::string, Value>> context = {
      {"messages", Value::list({message, message}).with_source(1)},
      {"tools", Value::list({message})},
      {"l", Value::list(std::vector<Value>())}};
  size_t rendered = 0, refused = 0;
  for (int i = 0; i < 6000; ++i) {
    const std::string source = mutated(templates[random() % templates.size()], random);
    try {
      Template(source, "fuzz").render(context, {.max_steps = 50'000, .max_string = 1 << 20});
      ++rendered;
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(rendered, 500u);
  EXPECT_GT(refused, 500u);
}

}  // namespace
}  // namespace hone::jinja
