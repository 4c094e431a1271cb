#include "app/launch/rank_processes.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hone {
namespace {

/// The exit code of a shell that start_process has started; 128 + signal if one ended it.
int shell(const std::string& script) {
  int status = 0;
  ::waitpid(start_process({"/bin/sh", "-c", script}, {}), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(RankProcesses, SignalsAreCaughtHereAndEndWhatIsStarted) {
  CaughtSignals signals;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) {
    ::raise(signal);
    EXPECT_EQ(signals.take(), signal);
    EXPECT_EQ(signals.take(), 0);
    EXPECT_EQ(shell("kill -" + std::to_string(signal) + " $$; exit 7"), 128 + signal);
  }
}

TEST(RankProcesses, SignalsThatWereIgnoredStayIgnored) {
  ::signal(SIGHUP, SIG_IGN);
  {
    CaughtSignals signals;
    ::raise(SIGHUP);
    EXPECT_EQ(signals.take(), 0);
    EXPECT_EQ(shell("kill -HUP $$; exit 7"), 7);
    EXPECT_EQ(shell("kill -TERM $$; exit 7"), 128 + SIGTERM);
  }
  ::raise(SIGHUP);  // ends the test where it is not ignored any more
  ::signal(SIGHUP, SIG_DFL);
}

}  // namespace
}  // namespace hone
