// Ranks that mpirun has started, and ranks that were started by hand, which speak over TCP: their collectives, and what
// the others learn of one that is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "shell.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

enum class Start { kMpirun, kByHand };

class LaunchedRanks : public ::testing::TestWithParam<Start> {
 protected:
  void SetUp() override {
    if (GetParam() == Start::kByHand) return;
    if (const std::string why = why_no_mpi(HONE_RANKS_CHECK); !why.empty()) GTEST_SKIP() << why;
  }

  static ShellOutcome run(int ranks, const std::string& arguments) {
    const std::string check = std::string(HONE_RANKS_CHECK) + " " + arguments, count = std::to_string(ranks);
    if (GetParam() == Start::kMpirun) {
      const std::string root = ::geteuid() == 0 ? " --allow-run-as-root" : "";
      return run_shell("timeout 120 mpirun -n " + count + root + " --oversubscribe --bind-to none --enable-recovery " +
                       check);
    }
    const std::string last = std::to_string(ranks - 1), port = std::to_string(20000 + ::getpid() % 20000);
    return run_shell("export WORLD_SIZE=" + count + " MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port +
                     "; pids=; for r in $(seq 0 " + last + "); do RANK=$r LOCAL_RANK=$r timeout 120 " + check +
                     " & pids=\"$pids $!\"; done; worst=0; for p in $pids; do wait $p || worst=$?; done; exit $worst");
  }
};

TEST_P(LaunchedRanks, CollectivesHoldOnTwoAndThree) {
  for (const int ranks : {2, 3}) {
    const ShellOutcome result = run(ranks, "");
    EXPECT_EQ(result.code, 0) << result.out;
    EXPECT_THAT(result.out, HasSubstr("all collectives held"));
    EXPECT_THAT(result.out, Not(HasSubstr("did not hold")));
    const std::string launcher = GetParam() == Start::kMpirun ? "Open MPI" : "hand";
    EXPECT_THAT(result.out,
                HasSubstr("rank 0 of " + std::to_string(ranks) + " (local rank 0), started by " + launcher));
  }
}

TEST_P(LaunchedRanks, AKilledRankIsNamedToTheOthers) {
  const std::string output = run(3, "--fault kill").out;
  for (const std::string survivor : {"rank 0: after ", "rank 2: after "}) EXPECT_THAT(output, HasSubstr(survivor));
  EXPECT_THAT(output,
              ::testing::ContainsRegex("rank 1 \\(.*, pid [0-9]+\\) is lost: its connection has ended; last seen"));
  EXPECT_THAT(output, HasSubstr("[lost: 1]"));
}

TEST_P(LaunchedRanks, ARankThatKeepsTheOthersWaitingIsNamedAndEnded) {
  const std::string output = run(3, "--fault hang").out;
  EXPECT_THAT(output,
              ::testing::ContainsRegex(
                  "all-reduce number 10 of step 10 has waited .* for rank 1 \\(.*\\), which is at step 10 and has "
                  "come to 9 collectives"));
  EXPECT_THAT(output, HasSubstr("[lost: 1]"));
}

TEST_P(LaunchedRanks, AStoppedRankIsNamedAndEnded) {
  const std::string output = run(2, "--fault stop").out;
  EXPECT_THAT(output, HasSubstr("is lost: nothing was heard of it for 2"));
  EXPECT_THAT(output, HasSubstr("[lost: 1]"));
}

TEST_P(LaunchedRanks, WhyARankFailedIsToldToTheOthers) {
  const std::string output = run(3, "--fault fail").out;
  for (const std::string rank : {"rank 0: after ", "rank 2: after "}) EXPECT_THAT(output, HasSubstr(rank));
  EXPECT_THAT(output, HasSubstr("failed: no space left on device [lost: 1]"));
}

INSTANTIATE_TEST_SUITE_P(By, LaunchedRanks, ::testing::Values(Start::kMpirun, Start::kByHand),
                         [](const auto& start) { return start.param == Start::kMpirun ? "Mpirun" : "Hand"; });

}  // namespace
}  // namespace hone
