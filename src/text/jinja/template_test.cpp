// Compares with Python's jinja2 on the files of tests/fixtures/templates (tools/make_template_fixtures.py).
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "core/base/error.h"
#include "core/text/json.h"
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

/// 2031-03-03 14:45 in the local time zone, the time of the fixtures.
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
    if (variant.contains("variables")) input.variables->update(variant["variables"]);
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

namespace hone::jinja {
namespace {

// Untrusted templates: every template gives a text or a UserError.

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
  // Each level contains the level below twice: 2^60 items for a full walk.
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

// Calls that unpack lists and dicts, and macros that take them.

std::string message_of(const std::string& source) {
  try {
    return "no error: " + render(source);
  } catch (const UserError& error) {
    return error.message();
  }
}

const std::string kMacro = "{% macro f(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}";

TEST(JinjaCalls, UnpackDictsAndLists) {
  EXPECT_EQ(render(kMacro + "{% set d = {'a': 1, 'b': 5} %}{{ f(**d) }}"), "1-5");
  EXPECT_EQ(render(kMacro + "{{ f(1, **{'b': 3}) }} {{ f(*[7, 8]) }} {{ f(*[7], b=9) }} {{ f(*(4,), **{}) }}"),
            "1-3 7-8 7-9 4-2");
  EXPECT_EQ(render("{{ dict(**{'x': 1}).x }}"), "1");
  EXPECT_EQ(render("{{ 'a b c' | replace(*['a', 'x']) }}"), "x b c");
}

TEST(JinjaCalls, MacrosTakeTheRestAsVarargsAndKwargs) {
  EXPECT_EQ(render("{% macro f(a) %}{{ a }}{% for k, v in kwargs.items() %} {{ k }}={{ v }}{% endfor %}{% endmacro %}"
                   "{{ f(1, x=2, y='z') }}"),
            "1 x=2 y=z");
  EXPECT_EQ(render("{% macro f(a) %}{{ a }}{{ varargs | length }}{% endmacro %}{{ f(1, 2, 3) }}"), "12");
  EXPECT_EQ(render("{% macro g(n) %}<{{ n }}>{% endmacro %}{% macro f() %}{{ g(**kwargs) }}{% endmacro %}{{ f(n=4) }}"),
            "<4>");
}

TEST(JinjaCalls, WhatPythonRefusesIsRefused) {
  EXPECT_EQ(message_of(kMacro + "{{ f(1, x=2) }}"), "chat template: the macro 'f' has no parameter 'x'");
  EXPECT_EQ(message_of(kMacro + "{{ f(a=1, **{'a': 2}) }}"), "chat template: the argument 'a' is given twice");
  EXPECT_EQ(message_of(kMacro + "{{ f(**5) }}"), "chat template: the argument after ** is a 'int', not a dict");
  EXPECT_EQ(message_of(kMacro + "{{ f(**{1: 2}) }}"), "chat template: keys of the dict after ** are not all strings");
  EXPECT_EQ(message_of(kMacro + "{{ f(**{}, 1) }}"), "chat template: an argument follows **, which is the last one");
  EXPECT_EQ(message_of(kMacro + "{{ f(*[1], *[2]) }}"),
            "chat template: a call unpacks one list with * and then one dict with **");
}

Value input(const std::string& text, SourceId source) {
  return Value::string(MarkedString(text, source)).with_source(source);
}

/// Renders with a = "Hello World" (source 1), b = " x,y " (source 2), n = 42 (source 3),
/// d = {"k": "v\n\"é"} (dict 4, key 5, value 6), l = [a, b] (source 7).
MarkedString render_marked(const std::string& source) {
  const Value a = input("Hello World", 1), b = input(" x,y ", 2);
  return Template(source, "test")
      .render({{"a", a},
               {"b", b},
               {"n", Value::integer(42).with_source(3)},
               {"d", Value::dict({{input("k", 5), input("v\n\"é", 6)}}).with_source(4)},
               {"l", Value::list({a, b}).with_source(7)}});
}

/// The text, a line feed, and below each byte the number of its source ('.': the template).
std::string marks(const std::string& source) {
  const MarkedString text = render_marked(source);
  std::string marks;
  for (size_t i = 0; i < text.size(); ++i) {
    const SourceId from = text.run_at(i).source;
    marks += from == kTemplateText ? '.' : static_cast<char>('0' + from);
  }
  return text.text() + "\n" + marks;
}

/// The source bytes that the output's bytes came from.
std::vector<size_t> offsets(const std::string& source) {
  const MarkedString text = render_marked(source);
  std::vector<size_t> result;
  size_t begin = 0;
  for (const Run& run : text.runs()) {
    for (size_t i = 0; i < run.end - begin; ++i)
      result.push_back(run.source && run.offset < kWholeInput ? run.offset + i : 0);
    begin = run.end;
  }
  return result;
}

TEST(Provenance, TextBetweenTagsIsTheTemplates) { EXPECT_EQ(marks("[{{ a }}]"), "[Hello World]\n.11111111111."); }

TEST(Provenance, ConcatenationKeepsBothHistories) {
  EXPECT_EQ(marks("{{ 'x' + a + b ~ n ~ '!' }}"), "xHello World x,y 42!\n.111111111112222233.");
  EXPECT_EQ(marks("{{ a[:1] + a[:1] }}"), "HH\n11");
  EXPECT_EQ(marks("{{ a[:2] * 2 }}"), "HeHe\n1111");
}

TEST(Provenance, SlicesAndStripsKeepTheOffsets) {
  EXPECT_EQ(marks("{{ b.strip() }}|{{ b | trim }}|{{ b.lstrip() }}|{{ a[6:] }}"),
            "x,y|x,y|x,y |World\n222.222.2222.11111");
  EXPECT_EQ(offsets("{{ a[6:] }}"), (std::vector<size_t>{6, 7, 8, 9, 10}));
  EXPECT_EQ(offsets("{{ a[::-5] }}"), (std::vector<size_t>{10, 5, 0}));
  EXPECT_EQ(offsets("{{ b.strip() }}"), (std::vector<size_t>{1, 2, 3}));
}

TEST(Provenance, SplitAndJoinKeepPiecesApartFromSeparators) {
  EXPECT_EQ(marks("{{ a.split(' ') | join('--') }}"), "Hello--World\n11111..11111");
  EXPECT_EQ(marks("{{ ','.join(b.strip().split(',')) }}"), "x,y\n2.2");
  EXPECT_EQ(marks("{{ l | join(n) }}"), "Hello World42 x,y \n111111111113322222");
  EXPECT_EQ(marks("{{ (a.split('o ')[-1] ~ a.partition(' ')[0]).splitlines() | first }}"), "WorldHello\n1111111111");
  EXPECT_EQ(offsets("{{ a.split(' ')[1] }}"), (std::vector<size_t>{6, 7, 8, 9, 10}));
}

TEST(Provenance, ReplacedPartsBelongToTheReplacement) {
  EXPECT_EQ(marks("{{ a.replace('World', b.strip()) }}"), "Hello x,y\n111111222");
  EXPECT_EQ(marks("{{ a | replace('l', 'L') }}"), "HeLLo WorLd\n11..11111.1");
  EXPECT_EQ(offsets("{{ a.replace('ello', '') }}"), (std::vector<size_t>{0, 5, 6, 7, 8, 9, 10}));
}

TEST(Provenance, ChangedCaseStandsForTheSameCharacters) {
  EXPECT_EQ(marks("{{ a | upper }}{{ a.lower() }}{{ a | title }}{{ a.swapcase() }}"),
            "HELLO WORLDhello worldHello WorldhELLO wORLD\n" + std::string(44, '1'));
  EXPECT_EQ(offsets("{{ a[6:] | upper }}"), (std::vector<size_t>{6, 7, 8, 9, 10}));
}

TEST(Provenance, JsonEscapesStandForTheirCharacters) {
  EXPECT_EQ(marks("{{ d | tojson }}"), "{\"k\": \"v\\n\\\"é\"}\n4555446666666664");
  EXPECT_EQ(offsets("{{ d.k | tojson }}"), (std::vector<size_t>{0, 0, 1, 1, 2, 2, 3, 4, 0}));
  EXPECT_EQ(marks("{{ {'q': n, 'w': a[:2]} | tojson }}"), "{\"q\": 42, \"w\": \"He\"}\n......33........11..");
  EXPECT_EQ(marks("{{ d }}"), "{'k': 'v\\n\"é'}\n455544666666664");
}

TEST(Provenance, FormattingKeepsTheValuesHistory) {
  EXPECT_EQ(marks("{{ '<%s|%5s>' % (a[:2], b[1]) }}"), "<He|    x>\n.11.....2.");
  EXPECT_EQ(marks("{{ '{}-{x:>3}'.format(n, x=b[1]) }}"), "42-  x\n33...2");
  EXPECT_EQ(marks("{{ a[:5] | indent(2, true) }}{{ '<' ~ a[:1] | e }}"), "  Hello<H\n..11111.1");
}

TEST(Provenance, HistoryGoesThroughVariablesMacrosAndBlocks) {
  EXPECT_EQ(marks("{% set x %}<{{ a[:2] }}>{% endset %}{{ x }}"), "<He>\n.11.");
  EXPECT_EQ(marks("{% macro m(t) %}({{ t }}){% endmacro %}{{ m(b[1]) }}"), "(x)\n.2.");
  EXPECT_EQ(marks("{% filter upper %}q{{ a[:2] }}{% endfilter %}"), "QHE\n.11");
  EXPECT_EQ(marks("{% set ns = namespace(x=a) %}{{ ns.x[:1] }}{{ l | map('upper') | first | first }}"), "HH\n11");
  EXPECT_EQ(marks("{% for k, v in d.items() %}{{ k }}={{ v | length }}{% endfor %}"), "k=4\n5..");
}

TEST(Provenance, TextWrittenInALoopOverInputsBelongsToTheItem) {
  const MarkedString text = render_marked("(-{% for x in l %}[{{ x[:1] }}{{ 'y' }}]{% endfor %})");
  std::string owners;
  for (size_t i = 0; i < text.size(); ++i) owners += static_cast<char>('0' + text.run_at(i).owner);
  EXPECT_EQ(text.text(), "(-[Hy][ y])");
  EXPECT_EQ(owners, "00111122220");
}

TEST(Provenance, GenerationBlocksAreMarked) {
  const MarkedString text = render_marked("a{% generation %}{{ b[1] }}c{% endgeneration %}d");
  std::string inside;
  for (size_t i = 0; i < text.size(); ++i) inside += text.run_at(i).generation ? 'g' : '.';
  EXPECT_EQ(text.text() + "\n" + inside, "axcd\n.gg.");
}

}  // namespace
}  // namespace hone::jinja
