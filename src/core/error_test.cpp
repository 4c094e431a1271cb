#include "core/error.h"

#include <gtest/gtest.h>

namespace hone {
namespace {

TEST(Error, PrintsWhatWhereAndHowToFix) {
  const UserError error("unknown key 'lerning_rate'", "run.yaml:3", "write 'learning_rate'");
  EXPECT_STREQ(error.what(), "error: unknown key 'lerning_rate'\n  where: run.yaml:3\n  fix:   write 'learning_rate'");
  EXPECT_EQ(error.code(), ExitCode::kUserInput);
}

TEST(DidYouMean, FindsNearNamesOnly) {
  const std::vector<std::string> names = {"learning_rate", "warmup_steps", "seed"};
  EXPECT_EQ(did_you_mean("lerning_rate", names), " Did you mean 'learning_rate'?");
  EXPECT_EQ(did_you_mean("sede", names), " Did you mean 'seed'?");
  EXPECT_EQ(did_you_mean("banana", names), "");
}

}  // namespace
}  // namespace hone
