#include "core/text/pcre.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace hone {
namespace {

using ::testing::ElementsAre;

/// The matches of `pattern`, each with its groups in parentheses.
std::vector<std::string> all(const std::string& pattern, const std::string& text) {
  const Pcre expression = Pcre::of_user(pattern);
  std::vector<std::string> found;
  for (const std::vector<PcreMatcher::Range>& match : PcreMatcher(expression, 100'000).find_all(text)) {
    std::string& said = found.emplace_back();
    for (size_t i = 0; i < match.size(); ++i) {
      const std::string part = text.substr(match[i].begin, match[i].size());
      said += i == 0 ? part : "(" + part + ")";
    }
  }
  return found;
}

/// As [m.group() for m in re.finditer(pattern, text)] of Python 3.
TEST(Pcre, FindsAllMatchesAsPythonDoes) {
  EXPECT_THAT(all(R"(\d+)", "a1b22"), ElementsAre("1", "22"));
  EXPECT_THAT(all(R"(\d*)", "a1b"), ElementsAre("", "1", "", ""));
  EXPECT_THAT(all("", "é"), ElementsAre("", ""));
  EXPECT_THAT(all("x", "abc"), ElementsAre());
  EXPECT_THAT(all(R"(\d)", "٣"), ElementsAre("٣"));  // a digit of Arabic
  EXPECT_THAT(all("a.", "aé a\n"), ElementsAre("aé"));
}

TEST(Pcre, AGroupThatTookNoPartIsEmpty) {
  EXPECT_THAT(all("(a)|(b+)", "abb"), ElementsAre("a(a)()", "bb()(bb)"));
  EXPECT_EQ(Pcre::of_user("(a)|(b+)").groups(), 2u);
  EXPECT_EQ(Pcre::of_user("(?:a)").groups(), 0u);
}

TEST(Pcre, EndsWithinItsLimits) {
  EXPECT_THROW(all("(a+)+$", std::string(40, 'a') + "b"), PcreError);
  EXPECT_THROW(Pcre::of_user("("), PcreError);
}

}  // namespace
}  // namespace hone
