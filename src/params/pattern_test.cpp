#include "params/pattern.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace hone {
namespace {

constexpr const char* kName = "model.layers.3.self_attn.q_proj.weight";

TEST(Pattern, ANameIsTheWholeOrTheEndAtADot) {
  for (const char* text : {"q_proj", "q_proj.weight", "self_attn.q_proj", "model.layers.3.self_attn.q_proj"}) {
    EXPECT_TRUE(Pattern(text).matches(kName)) << text;
  }
  for (const char* text : {"proj", "_proj", "attn.q_proj", "self_attn", "model", "k_proj"}) {
    EXPECT_FALSE(Pattern(text).matches(kName)) << text;
  }
}

TEST(Pattern, AGlobMatchesTheWholeName) {
  for (const char* text : {"*", "*q_proj", "*.q_proj.weight", "model.layers.?.self_attn.*", "*layers.[0-3].*"}) {
    EXPECT_TRUE(Pattern(text).matches(kName)) << text;
  }
  for (const char* text : {"q_*", "*self_attn", "*layers.[4-9].*", "model.layers.??.*"}) {
    EXPECT_FALSE(Pattern(text).matches(kName)) << text;
  }
}

TEST(Pattern, AnExpressionMatchesAnywhere) {
  EXPECT_TRUE(Pattern("re:layers\\.[0-9]+\\.self_attn").matches(kName));
  EXPECT_TRUE(Pattern("re:q_proj$").matches(kName));  // the name without .weight is tried too
  EXPECT_FALSE(Pattern("re:^layers").matches(kName));
}

TEST(Pattern, AModuleHasItsWeightsNameWithoutTheEnd) {
  EXPECT_EQ(without_weight("lm_head.weight"), "lm_head");
  EXPECT_EQ(without_weight("mlp.experts.gate_up_proj"), "mlp.experts.gate_up_proj");
}

TEST(Pattern, AnExpressionThatDoesNotParseIsTheUsersError) {
  EXPECT_THROW(Pattern("re:(q_proj"), UserError);
  EXPECT_THROW(Pattern("re:[z-a]"), UserError);
}

}  // namespace
}  // namespace hone
