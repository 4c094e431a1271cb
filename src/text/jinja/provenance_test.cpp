#include <gtest/gtest.h>

#include "text/jinja/template.h"

namespace hone::jinja {
namespace {

Value input(const std::string& text, SourceId source) {
  return Value::string(MarkedString(text, source)).with_source(source);
}

/// Renders with a = "Hello World" (source 1), b = " x,y " (source 2), n = 42 (source 3),
/// d = {"k": "v\n\"é"} (dict 4, key 5, value 6), l = [a, b] (source 7).
MarkedString render(const std::string& source) {
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
  const MarkedString text = render(source);
  std::string marks;
  for (size_t i = 0; i < text.size(); ++i) {
    const SourceId from = text.run_at(i).source;
    marks += from == kTemplateText ? '.' : static_cast<char>('0' + from);
  }
  return text.text() + "\n" + marks;
}

/// The bytes of the sources that the output's bytes came from.
std::vector<size_t> offsets(const std::string& source) {
  const MarkedString text = render(source);
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
  const MarkedString text = render("(-{% for x in l %}[{{ x[:1] }}{{ 'y' }}]{% endfor %})");
  std::string owners;
  for (size_t i = 0; i < text.size(); ++i) owners += static_cast<char>('0' + text.run_at(i).owner);
  EXPECT_EQ(text.text(), "(-[Hy][ y])");
  EXPECT_EQ(owners, "00111122220");
}

TEST(Provenance, GenerationBlocksAreMarked) {
  const MarkedString text = render("a{% generation %}{{ b[1] }}c{% endgeneration %}d");
  std::string inside;
  for (size_t i = 0; i < text.size(); ++i) inside += text.run_at(i).generation ? 'g' : '.';
  EXPECT_EQ(text.text() + "\n" + inside, "axcd\n.gg.");
}

}  // namespace
}  // namespace hone::jinja
