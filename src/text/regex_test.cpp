#include "text/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace hone {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const Regex regex(pattern, "test");
  RegexMatches walk(regex);
  walk.start(text);
  std::vector<std::string> found;
  while (const auto match = walk.next()) found.push_back(text.substr(match->begin, match->end - match->begin));
  return found;
}

TEST(Regex, HasOnigurumasMeaningOfAnchorsAndDot) {
  EXPECT_THAT(matches("^a", "a\na\r\na"), ElementsAre("a", "a", "a"));
  EXPECT_THAT(matches("a$", "a\na\r\na"), ElementsAre("a", "a"));
  EXPECT_THAT(matches(".", "a\nb\r"), ElementsAre("a", "b", "\r"));
}

TEST(Regex, ReadsIntervalsAsOnigurumaDoes) {
  EXPECT_THAT(matches("a{,2}b", "aaab{,2}"), ElementsAre("aab"));
  EXPECT_THAT(matches("a{2}", "aaaaa"), ElementsAre("aa", "aa"));
  EXPECT_THAT(matches("a{x}", "a{x}"), ElementsAre("a{x}"));
}

TEST(Regex, WhiteSpaceIsUnicodesWithoutTheVowelSeparator) {
  EXPECT_THAT(matches("\\s", "\u0085\u00a0\u180e\u200b\u2028\u3000"),
              ElementsAre("\u0085", "\u00a0", "\u2028", "\u3000"));
}

TEST(Regex, LettersOfLaterUnicodeVersionsCount) {
  EXPECT_THAT(matches("\\p{L}+", "a\U00031350b"), ElementsAre("a\U00031350b"));
  EXPECT_THAT(matches("[\\p{P}\\p{S}]+", "x\U0001FA77!"), ElementsAre("\U0001FA77!"));
  EXPECT_THAT(matches("\\p{Han}", "\U00031350\U00016D43"), ElementsAre("\U00031350"));
}

TEST(Regex, ScriptsAreNotScriptExtensions) {
  // U+3001 is common punctuation that the extensions give to Han.
  EXPECT_THAT(matches("\\p{Han}+", "漢、字"), ElementsAre("漢", "字"));
}

TEST(Regex, CaselessContractionsFoldTheLongS) {
  EXPECT_THAT(matches("(?i:'s|'t)", "'S'ſ'T"), ElementsAre("'S", "'ſ", "'T"));
}

TEST(Regex, EmptyMatchesAdvance) { EXPECT_THAT(matches("x*", "éxx"), ElementsAre("", "xx")); }

TEST(Regex, MatchesFarBeyondTheJitStack) {
  const std::string text(300'000, 'a');
  EXPECT_THAT(matches("(?:a|b)+", text), ElementsAre(text));
}

TEST(Regex, RefusesWhatMeansSomethingElse) {
  for (const char* pattern : {"[a&&b]", "[[:alpha:]]", "[a[b]]", "(?<x>a)", "(a)\\1", "\\k<x>", "\\R", "\\X", "a{1,2}+",
                              "(?m:.)", "a(?i)b", "(*ACCEPT)", "\\pL", "\\xE9", "\\C", "\\Qa\\E", "\\"}) {
    try {
      const Regex regex(pattern, "tokenizer.json: pre_tokenizer.pattern");
      ADD_FAILURE() << pattern << " was accepted";
    } catch (const UserError& error) {
      EXPECT_EQ(error.where(), "tokenizer.json: pre_tokenizer.pattern");
      EXPECT_THAT(error.message(), HasSubstr("not supported")) << pattern;
    }
  }
}

TEST(Regex, NamesAPatternThatDoesNotCompile) {
  for (const char* pattern : {"(a", "a)", "*", "[z-a]", "\\p{Nope}", "(?<=a+)b"})
    EXPECT_THROW(Regex(pattern, "here"), UserError) << pattern;
}

}  // namespace
}  // namespace hone
