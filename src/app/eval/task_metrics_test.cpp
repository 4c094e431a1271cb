// The expected values are those of lm-evaluation-harness 0.4.13 and rouge_score 0.1.2: tools/eval_proof.py --values.
#include "app/eval/task_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/error.h"

namespace hone {
namespace {

using ::testing::ElementsAre;
using Texts = std::pair<std::string, std::string>;

TEST(TaskMetrics, RougeLIsThatOfRougeScore) {
  EXPECT_DOUBLE_EQ(rouge_l("The cat sat on the mat.", "the cat is on the mat"), 0.8333333333333334);
  EXPECT_DOUBLE_EQ(rouge_l("a b c d", "d c b a"), 0.25);
  EXPECT_DOUBLE_EQ(rouge_l("Ärger im Büro 24/7", "Büro 24 7"), 0.8);
  EXPECT_DOUBLE_EQ(rouge_l("", "words"), 0);
  EXPECT_DOUBLE_EQ(rouge_l("one", "one"), 1);
  EXPECT_DOUBLE_EQ(rouge_l("don't stop", "do not stop"), 0.3333333333333333);
  EXPECT_DOUBLE_EQ(rouge_l("A  b\n\nB\ta", "a b b a"), 1);
}

TEST(TaskMetrics, ExactMatchLeavesOutWhatTheHarnessLeavesOut) {
  const std::vector<Texts> pairs = {{"Paris!", "paris"}, {"a1b", "ab"},   {"12 apples", " apples"},
                                    {"ÉTÉ", "été"},      {"x, y", "x y"}, {"3,000", "3000"}};
  const auto matches = [&](const ExactMatchOptions& options) {
    std::vector<int> result;
    for (const auto& [answer, reference] : pairs) result.push_back(exact_match(answer, reference, options));
    return result;
  };
  EXPECT_THAT(matches({}), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(matches({.ignore_case = true}), ElementsAre(0, 0, 0, 1, 0, 0));
  EXPECT_THAT(matches({.ignore_punctuation = true}), ElementsAre(0, 0, 0, 0, 1, 1));
  EXPECT_THAT(matches({.ignore_numbers = true}), ElementsAre(0, 1, 1, 0, 0, 0));
  EXPECT_THAT(matches({.ignore_case = true, .ignore_punctuation = true}), ElementsAre(1, 0, 0, 1, 1, 1));
  EXPECT_THAT(matches({.regexes_to_ignore = {TaskPattern(",", "option"), TaskPattern(R"(\d)", "option")}}),
              ElementsAre(0, 1, 1, 0, 1, 1));
}

TEST(TaskMetrics, APatternFindsWhatTheHarnessFinds) {
  const std::vector<std::string> texts = {"so 3 + 4 = 7\n#### 7", "#### -1,000. and #### 5", "abba 12", ""};
  const auto found = [&](const std::string& pattern, int select) {
    std::vector<std::string> result;
    for (const std::string& text : texts) {
      result.push_back(TaskPattern(pattern, "option").find(text, select).value_or("[invalid]"));
    }
    return result;
  };
  EXPECT_THAT(found(R"(#### (\-?[0-9\.\,]+))", 0), ElementsAre("7", "-1,000.", "[invalid]", "[invalid]"));
  EXPECT_THAT(found(R"((-?\d+))", -1), ElementsAre("7", "5", "12", "[invalid]"));
  EXPECT_THAT(found("(a)|(b+)", 1), ElementsAre("[invalid]", "[invalid]", "bb", "[invalid]"));
  EXPECT_THAT(found(R"(\d*)", 0), ElementsAre("", "", "", ""));
  EXPECT_THAT(found("x", 0), ElementsAre("[invalid]", "[invalid]", "[invalid]", "[invalid]"));
}

TEST(TaskMetrics, RefusesPatternsThatDoNotCompileOrDoNotEnd) {
  EXPECT_THROW(TaskPattern("(", "--answer-pattern"), UserError);
  const TaskPattern endless("(a+)+$", "--answer-pattern");
  try {
    endless.find(std::string(64, 'a') + "b", 0);
    FAIL() << "it ended";
  } catch (const UserError& error) {
    EXPECT_EQ(error.where(), "--answer-pattern");
  }
}

TEST(TaskMetrics, TheLikeliestChoiceIsTheFirstOfEqualOnes) {
  const std::vector<double> sums = {-4.0, -3.0, -3.0};
  EXPECT_EQ(likeliest(sums), 1u);
  const std::vector<size_t> characters = {8, 3, 5};
  EXPECT_EQ(likeliest(sums, characters), 0u);
  EXPECT_EQ(character_count("été"), 3u);
}

TEST(TaskMetrics, MeansHaveTheStandardErrorOfASample) {
  const std::vector<double> values = {1, 0, 0, 1, 1};
  EXPECT_DOUBLE_EQ(mean_of(values).mean, 0.6);
  EXPECT_DOUBLE_EQ(*mean_of(values).stderr_of_mean, std::sqrt(0.3 / 5));
  EXPECT_FALSE(mean_of(std::vector<double>{1.0}).stderr_of_mean);
}

TEST(TaskMetrics, TextsLoseWhiteSpaceAtTheirEndsOnly) {
  EXPECT_EQ(stripped(" \n a b\t"), "a b");
  EXPECT_EQ(stripped("  "), "");
}

}  // namespace
}  // namespace hone
