#include "core/error.h"

#include <gtest/gtest.h>

namespace hone {
namespace {

TEST(Error, PrintsWhatWhereAndHowToFix) {
  const UserError error("unknown key 'lerning_rate'", "run.yaml:3", "write 'learning_rate'");
  EXPECT_STREQ(error.what(), "error: unknown key 'lerning_rate'\n  where: run.yaml:3\n  fix:   write 'learning_rate'");
  EXPECT_EQ(error.code(), ExitCode::kUserInput);
}

TEST(Error, ShowsControlCharactersOfNamesAndCutsWhatIsLong) {
  const UserError error("'\x1b[2Jx\n  fix:   run this' appears twice", "a\rb", "\u202eabc");
  EXPECT_STREQ(error.what(),
               "error: '\\x1b[2Jx\\n  fix:   run this' appears twice\n  where: a\\x0db\n  fix:   \\u202eabc");
  const std::string cut = UserError("'" + std::string(1'000'000, 'x') + "' is not a number").what();
  EXPECT_LT(cut.size(), 5000u);
  EXPECT_TRUE(cut.starts_with("error: 'xxx") && cut.ends_with("xxx' is not a number")) << cut;
}

TEST(DidYouMean, FindsNearNamesOnly) {
  const std::vector<std::string> names = {"learning_rate", "warmup_steps", "seed"};
  EXPECT_EQ(did_you_mean("lerning_rate", names), " Did you mean 'learning_rate'?");
  EXPECT_EQ(did_you_mean("sede", names), " Did you mean 'seed'?");
  EXPECT_EQ(did_you_mean("banana", names), "");
  const std::string longest(3'000'000, 's');
  EXPECT_EQ(did_you_mean(longest, std::vector<std::string>(100, "t" + longest)), "") << "in no time";
}

}  // namespace
}  // namespace hone
