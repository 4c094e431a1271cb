#include "train/run/stop_signal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace hone {
namespace {

TEST(StopSignal, EveryOneOfThemIsRememberedAndTwiceIsOnce) {
  for (const auto& [number, name] : {std::pair{SIGTERM, "SIGTERM"},
                                     {SIGHUP, "SIGHUP"},
                                     {SIGUSR1, "SIGUSR1"},
                                     {SIGUSR2, "SIGUSR2"},
                                     {SIGINT, "SIGINT"}}) {
    const StopSignal stop;
    EXPECT_FALSE(stop.requested());
    raise(number);
    raise(number);  // a launcher and a batch system may both send it
    EXPECT_TRUE(stop.requested());
    EXPECT_EQ(std::string(stop.name()), name);
    raise(SIGTERM);
    EXPECT_EQ(std::string(stop.name()), name) << "the first signal counts";
  }
}

TEST(StopSignal, ACallerAsksAlsoBeforeTheRun) {
  request_stop();
  {
    const StopSignal stop;
    EXPECT_TRUE(stop.requested());
    EXPECT_EQ(std::string(stop.name()), "its caller");
  }
  EXPECT_EQ(std::string(last_stop()), "its caller");
  EXPECT_FALSE(StopSignal().requested()) << "the run has ended";
  EXPECT_EQ(std::string(last_stop()), "");
  request_stop();
  withdraw_stop();
  EXPECT_FALSE(StopSignal().requested());
}

TEST(StopSignal, OneThatWasIgnoredStaysIgnored) {
  std::signal(SIGHUP, SIG_IGN);  // as nohup does
  {
    const StopSignal stop;
    raise(SIGHUP);
    EXPECT_FALSE(stop.requested());
    raise(SIGUSR1);
    EXPECT_TRUE(stop.requested());
  }
  struct sigaction now {};
  sigaction(SIGHUP, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_IGN);
  std::signal(SIGHUP, SIG_DFL);
}

TEST(StopSignalDeathTest, ASecondInterruptEndsTheProgram) {
  const auto interrupted_twice = [] {
    const StopSignal stop;
    stop.at_step(12);
    raise(SIGINT);
    usleep(700'000);  // a second key press, not the same one sent by two programs
    raise(SIGINT);
  };
  EXPECT_EXIT(interrupted_twice(), testing::KilledBySignal(SIGINT), "finishing step 12 and saving; again to stop now");
}

}  // namespace
}  // namespace hone
