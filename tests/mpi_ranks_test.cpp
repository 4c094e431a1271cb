// Ranks that mpirun has started: their collectives, and what the others learn of one that is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "shell.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MpiRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_mpi(HONE_RANKS_CHECK); !why.empty()) GTEST_SKIP() << why;
  }

  static ShellOutcome run(int ranks, const std::string& arguments) {
    const std::string root = ::geteuid() == 0 ? " --allow-run-as-root" : "";
    return run_shell("timeout 120 mpirun -n " + std::to_string(ranks) + root +
                     " --oversubscribe --bind-to none --enable-recovery " HONE_RANKS_CHECK " " + arguments);
  }
};

TEST_F(MpiRanks, CollectivesHoldOnTwoAndThree) {
  for (const int ranks : {2, 3}) {
    const ShellOutcome result = run(ranks, "");
    EXPECT_EQ(result.code, 0) << result.out;
    EXPECT_THAT(result.out, HasSubstr("all collectives held"));
    EXPECT_THAT(result.out, Not(HasSubstr("did not hold")));
    EXPECT_THAT(result.out, HasSubstr("rank 0 of " + std::to_string(ranks) + " (local rank 0), started by Open MPI"));
  }
}

TEST_F(MpiRanks, AKilledRankIsNamedToTheOthers) {
  const std::string output = run(3, "--fault kill").out;
  for (const std::string survivor : {"rank 0: after ", "rank 2: after "}) EXPECT_THAT(output, HasSubstr(survivor));
  EXPECT_THAT(output,
              ::testing::ContainsRegex("rank 1 \\(.*, pid [0-9]+\\) is lost: its connection has ended; last seen"));
  EXPECT_THAT(output, HasSubstr("[lost: 1]"));
}

TEST_F(MpiRanks, ARankThatKeepsTheOthersWaitingIsNamedAndEnded) {
  const std::string output = run(3, "--fault hang").out;
  EXPECT_THAT(output,
              ::testing::ContainsRegex(
                  "all-reduce number 10 of step 10 has waited .* for rank 1 \\(.*\\), which is at step 10 and has "
                  "come to 9 collectives"));
  EXPECT_THAT(output, HasSubstr("[lost: 1]"));
}

TEST_F(MpiRanks, AStoppedRankIsNamedAndEnded) {
  const std::string output = run(2, "--fault stop").out;
  EXPECT_THAT(output, HasSubstr("is lost: nothing was heard of it for 2"));
  EXPECT_THAT(output, HasSubstr("[lost: 1]"));
}

TEST_F(MpiRanks, WhyARankFailedIsToldToTheOthers) {
  const std::string output = run(3, "--fault fail").out;
  for (const std::string rank : {"rank 0: after ", "rank 2: after "}) EXPECT_THAT(output, HasSubstr(rank));
  EXPECT_THAT(output, HasSubstr("failed: no space left on device [lost: 1]"));
}

}  // namespace
}  // namespace hone
