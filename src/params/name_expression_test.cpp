#include "params/name_expression.h"
#include "core/base/processor_time_testing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
using Must = NameExpression::Must;

bool ends(const std::string& expression, const std::string& name) {
  return NameExpression(expression, Must::kMatchTheEnd, "rank_pattern").matches(name);
}

std::string refusal(const std::string& expression, const std::string& name, Must must = Must::kMatchTheEnd) {
  try {
    NameExpression(expression, must, "rank_pattern").matches(name);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(NameExpression, MeansWhatPeftMeans) {
  const std::string name = "model.layers.3.self_attn.q_proj";
  for (const char* match :
       {"q_proj", "self_attn.q_proj", "self_attn\\.q_proj", "model.layers.3.self_attn.q_proj", "layers.[0-9].*",
        "q_proj|k_proj", ".*", "self.attn.q.proj", "(?:[qk])_proj", "q_(p)roj", "s(el)f_attn.q_proj"}) {
    EXPECT_TRUE(ends(match, name)) << match;
  }
  for (const char* other : {"proj", "attn.q_proj", "self_attn", "layers", "layers.[4-9].*", "self_attn\\_q_proj",
                            "xmodel.layers.3.self_attn.q_proj", "q_projx", "\\d_proj"}) {
    EXPECT_FALSE(ends(other, name)) << other;
  }
  // The expression stands in the second group, and alternatives beside a bracket of its own are the whole's.
  EXPECT_TRUE(ends("(a)\\3", "x.aa"));
  EXPECT_TRUE(ends("nothing)|(model", "model"));
  EXPECT_FALSE(ends("nothing|layers", name));
}

TEST(NameExpression, ADotIsAnyCharacterAndAnEscapedOneADot) {
  EXPECT_TRUE(ends("a.b", "m.axb"));
  EXPECT_FALSE(ends("a\\.b", "m.axb"));
  EXPECT_TRUE(ends("a\\-b", "a-b"));
  EXPECT_TRUE(ends("a\\db", "m.a7b"));
}

TEST(NameExpression, WhatToolsWriteIsRead) {
  const std::string many = [] {
    std::string text;
    for (int i = 0; text.size() < 16 * 1024; ++i) text += (i ? "|model.layers." : "") + std::to_string(i) + ".q_proj";
    return text;
  }();
  EXPECT_TRUE(ends("(?:" + many + ")", "model.layers.77.q_proj"));
  EXPECT_FALSE(ends("(?:" + many + ")", "model.layers.77.k_proj"));
  EXPECT_TRUE(ends(std::string(16 * 1024, 'a'), std::string(16 * 1024, 'a')));
}

TEST(NameExpression, WhatIsMadeToHurtIsRefusedSoon) {
  const double begin = processor_seconds();
  const std::string name = "model.layers.3.self_attn.q_proj";
  EXPECT_THAT(refusal("(([a-z._0-9]+)+)+[!?]", name), HasSubstr("cannot be matched"));
  EXPECT_THAT(refusal("(([a-z._0-9]+)+)+[!?]", name, Must::kBeginAnywhere), HasSubstr("rank_pattern"));
  EXPECT_THAT(refusal(std::string(30'000, '(') + std::string(30'000, ')'), name),
              HasSubstr("not a regular expression"));
  EXPECT_THAT(refusal(std::string(80'000, 'a'), name), HasSubstr("80000 bytes, 65536 are allowed"));
  EXPECT_EQ(refusal("(a?){20}" + std::string(20, 'a'), name), "");
  EXPECT_LT(processor_seconds() - begin, 10);
}

TEST(NameExpression, OneBudgetBoundsAList) {
  const auto budget = std::make_shared<MatchBudget>();
  const NameExpression slow("(?:a|b|c)+x", Must::kBeginAnywhere, "freeze_parameters", budget);
  EXPECT_FALSE(slow.matches("abc"));
  budget->spend(1'000'000'000);
  EXPECT_THROW(slow.matches("abc"), UserError);
}

}  // namespace
}  // namespace hone
