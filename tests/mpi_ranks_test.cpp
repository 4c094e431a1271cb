// Ranks that mpirun has started: their collectives, and what the others learn of one that is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Result {
  int code = -1;
  std::string output;
};

Result run_shell(const std::string& command) {
  Result result;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (!pipe) return result;
  for (char chunk[4096]; const size_t count = std::fread(chunk, 1, sizeof chunk, pipe);)
    result.output.append(chunk, count);
  const int status = ::pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

class MpiRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("mpirun --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun: install openmpi-bin";
    if (!std::filesystem::exists(std::filesystem::path(HONE_RANKS_CHECK).parent_path() / "lib" / "hone_mpi.so")) {
      GTEST_SKIP() << "built without MPI: install libopenmpi-dev";
    }
  }

  static Result run(int ranks, const std::string& arguments) {
    const std::string root = ::geteuid() == 0 ? " --allow-run-as-root" : "";
    return run_shell("timeout 120 mpirun -n " + std::to_string(ranks) + root +
                     " --oversubscribe --bind-to none --enable-recovery " HONE_RANKS_CHECK " " + arguments);
  }
};

TEST_F(MpiRanks, CollectivesHoldOnTwoAndThree) {
  for (const int ranks : {2, 3}) {
    const Result result = run(ranks, "");
    EXPECT_EQ(result.code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("all collectives held"));
    EXPECT_THAT(result.output, Not(HasSubstr("did not hold")));
    EXPECT_THAT(result.output,
                HasSubstr("rank 0 of " + std::to_string(ranks) + " (local rank 0), started by Open MPI"));
  }
}

TEST_F(MpiRanks, AKilledRankIsNamedToTheOthers) {
  const std::string output = run(3, "--fault kill").output;
  for (const std::string survivor : {"rank 0: after ", "rank 2: after "}) EXPECT_THAT(output, HasSubstr(survivor));
  EXPECT_THAT(output,
              ::testing::ContainsRegex("rank 1 \\(.*, pid [0-9]+\\) is lost: its connection has ended; last seen"));
  EXPECT_THAT(output, HasSubstr("[lost: 1]"));
}

TEST_F(MpiRanks, ARankThatKeepsTheOthersWaitingIsNamedAndEnded) {
  const std::string output = run(3, "--fault hang").output;
  EXPECT_THAT(output,
              ::testing::ContainsRegex(
                  "all-reduce number 10 of step 10 has waited .* for rank 1 \\(.*\\), which is at step 10 and has "
                  "come to 9 collectives"));
  EXPECT_THAT(output, HasSubstr("[lost: 1]"));
}

TEST_F(MpiRanks, AStoppedRankIsNamedAndEnded) {
  const std::string output = run(2, "--fault stop").output;
  EXPECT_THAT(output, HasSubstr("is lost: nothing was heard of it for 2"));
  EXPECT_THAT(output, HasSubstr("[lost: 1]"));
}

TEST_F(MpiRanks, WhyARankFailedIsToldToTheOthers) {
  const std::string output = run(3, "--fault fail").output;
  for (const std::string rank : {"rank 0: after ", "rank 2: after "}) EXPECT_THAT(output, HasSubstr(rank));
  EXPECT_THAT(output, HasSubstr("failed: no space left on device [lost: 1]"));
}

}  // namespace
