#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "report/chart.h"
#include "report/terminal.h"
#include "report/text_mask.h"

namespace hone {
namespace {

using testing::HasSubstr;

TEST(BarChart, TheLongestBarFillsTheWidthAndNothingElseIsLonger) {
  const std::vector<Bar> bars = {{"0–9", 500}, {"10–19", 1000, "half"}, {"20–99", 1}, {"100", 0}};
  const std::vector<std::string> lines = split_lines(bar_chart(bars, 40, false));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(display_width(lines[1]), 40);
  EXPECT_EQ(lines[0], "    0–9  █████████▌ 500");
  EXPECT_EQ(lines[1], "  10–19  ███████████████████ 1,000  half");
  EXPECT_EQ(lines[2], "  20–99  ▏ 1");
  EXPECT_EQ(lines[3], "    100   0");
}

TEST(BarChart, KeepsBarsWhereThereIsNoRoomAndWithoutAny) {
  const std::vector<Bar> bars = {{"a long label that takes the whole line", 3}};
  EXPECT_NE(bar_chart(bars, 10, false).find("██████████ 3"), std::string::npos);
  EXPECT_EQ(bar_chart({}, 80, true), "");
}

TEST(TextMask, WithoutColourBracketsWhatIsSupervised) {
  const std::vector<MaskPiece> pieces = {
      {"<user>", false}, {"hi\n", false}, {"Hel", true}, {"lo", true}, {"\n", false}};
  EXPECT_EQ(text_mask(pieces, false), "<user>hi⏎\n[[Hello]]⏎\n[[supervised]]: 2 of 5 tokens (40.0%)\n");
}

TEST(TextMask, InColourTheRestIsDimAndNoLineStaysGreen) {
  const std::vector<MaskPiece> pieces = {{"hi ", false}, {"a\nb", true}};
  const std::string text = text_mask(pieces, true);
  EXPECT_THAT(text, HasSubstr("\x1b[2mhi \x1b[0m\x1b[32ma⏎\x1b[0m\n\x1b[32mb\x1b[0m\n"));
}

TEST(TextMask, ACharacterSpreadOverTokensIsWholeAgain) {
  const std::vector<MaskPiece> pieces = {{"gr\xC3", true}, {"\xBC\xC3\x9F", true}};
  EXPECT_THAT(text_mask(pieces, false), HasSubstr("[[grüß]]"));
  const std::vector<MaskPiece> split = {{"\xC3", true}, {"\xBC", false}};
  EXPECT_THAT(text_mask(split, false), HasSubstr("[[<0xC3>]]<0xBC>"));
}

TEST(TextMask, ControlCharactersAreShownNotExecuted) {
  const std::vector<MaskPiece> pieces = {{"\t\x1b[2J\x7F\r", false}, {"\u202Eabc\xC2\x9B", true}};
  EXPECT_THAT(text_mask(pieces, false), HasSubstr("⇥␛[2J␡␍[[<U+202E>abc<U+009B>]]"));
}

TEST(TextMask, NoTokensIsNotAnError) { EXPECT_EQ(text_mask({}, false), "[[supervised]]: 0 of 0 tokens (0.0%)\n"); }

TEST(TextMask, TokensThatAreNotShownAreCounted) {
  const std::vector<MaskPiece> pieces = {
      {"ab", false, 2}, {"", false, 1'000'000, false}, {"ij", false, 2}, {"0123", true, 4}};
  EXPECT_EQ(text_mask(pieces, false),
            "ab … 1,000,000 tokens … ij[[0123]]\n[[supervised]]: 4 of 1,000,008 tokens (0.0%)\n");
}

}  // namespace
}  // namespace hone
