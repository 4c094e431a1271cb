#include "text/thinking.h"

#include <gtest/gtest.h>

namespace hone {
namespace {

/// A chat template whose prompt ends with `ending`.
ChatTemplate ending_with(const std::string& ending) {
  return {"{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}" + ending +
              "{% endif %}",
          "t"};
}

const std::string kEnableThinking =
    "<a>{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}";
const std::string kThinking = "<a>{% if thinking %}<think>{% else %}</think>{% endif %}";

TEST(ThinkingSwitch, IsFoundByRendering) {
  EXPECT_EQ(thinking_switch(ending_with(kEnableThinking), Json::object()), "enable_thinking");
  EXPECT_EQ(thinking_switch(ending_with(kThinking), Json::object()), "thinking");
  EXPECT_EQ(thinking_switch(ending_with("<a>"), Json::object()), std::nullopt);
  // Named, but without a difference.
  EXPECT_EQ(thinking_switch(ending_with("<a>{% if enable_thinking %}{% endif %}"), Json::object()), std::nullopt);
  EXPECT_EQ(thinking_switch(ending_with("{{ raise_exception('no') }}"), Json::object()), std::nullopt);
}

TEST(ThinkingSwitch, ThePromptThinksUnlessItIsOff) {
  EXPECT_TRUE(prompt_thinks(ending_with(kEnableThinking), Json::object()));
  EXPECT_FALSE(prompt_thinks(ending_with(kEnableThinking), {{"enable_thinking", false}}));
  EXPECT_FALSE(prompt_thinks(ending_with(kThinking), Json::object()));
  EXPECT_TRUE(prompt_thinks(ending_with(kThinking), {{"thinking", true}}));
  EXPECT_TRUE(prompt_thinks(ending_with("<a><think>\n"), Json::object()));
  EXPECT_FALSE(prompt_thinks(ending_with("<a><think>\n\n</think>\n"), Json::object()));
  EXPECT_FALSE(prompt_thinks(ending_with("<a>"), Json::object()));
}

TEST(ThinkBlocks, AreThoughtsIfSomethingIsInThem) {
  EXPECT_TRUE(has_think_block("<think>hm</think>a"));
  EXPECT_TRUE(has_think_block("hm</think>a"));
  EXPECT_FALSE(has_think_block("<think>\n\n</think>\n\na"));
  EXPECT_FALSE(has_think_block("a <think> is a tag"));
  EXPECT_TRUE(is_empty_think_block("<think>\n\n</think>\n\n"));
  EXPECT_FALSE(is_empty_think_block("<think>hm</think>"));
  EXPECT_FALSE(is_empty_think_block("\n"));
}

}  // namespace
}  // namespace hone
