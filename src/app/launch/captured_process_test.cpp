#include "app/launch/captured_process.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>

namespace hone {
namespace {

std::vector<std::string> shell(const std::string& commands) { return {"/bin/sh", "-c", commands}; }

TEST(CapturedProcess, ItsOutputStatusAndMemoryAreKept) {
  CaughtSignals signals;
  const CapturedProcess process = run_captured(shell("echo out; (echo more); echo err >&2; exit 3"), 60, signals);
  EXPECT_EQ(process.out, "out\nmore\n");
  EXPECT_EQ(process.err, "err\n");
  ASSERT_TRUE(WIFEXITED(process.status));
  EXPECT_EQ(WEXITSTATUS(process.status), 3);
  EXPECT_FALSE(process.timed_out);
  EXPECT_EQ(process.stopped_by, 0);
  EXPECT_GT(process.peak_resident_bytes, 100'000u);
}

TEST(CapturedProcess, IsEndedAtItsLimitAndByASignalToThisProcess) {
  CaughtSignals signals;
  const CapturedProcess slow = run_captured(shell("echo begun; exec sleep 60"), 0.1, signals);
  EXPECT_TRUE(slow.timed_out);
  EXPECT_EQ(slow.out, "begun\n");
  EXPECT_TRUE(WIFSIGNALED(slow.status) && WTERMSIG(slow.status) == SIGTERM);
  raise(SIGUSR1);  // is not a reason to end
  EXPECT_EQ(run_captured(shell("exit 0"), 60, signals).stopped_by, 0);
  raise(SIGINT);
  const CapturedProcess stopped = run_captured(shell("exec sleep 60"), 60, signals);
  EXPECT_EQ(stopped.stopped_by, SIGINT);
  EXPECT_FALSE(stopped.timed_out);
}

TEST(CapturedProcess, AProgramThatIsNotThereEndsWith127) {
  CaughtSignals signals;
  EXPECT_EQ(WEXITSTATUS(run_captured({"/none"}, 60, signals).status), 127);
}

}  // namespace
}  // namespace hone
