#include "core/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "core/error.h"
#include "core/root_testing.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string refusal(const fs::path& folder) {
  try {
    const FolderLock lock(folder);
  } catch (const UserError& error) {
    return error.message();
  }
  return "";
}

TEST(FolderLock, OneHoldsItAndItsFileGoesWithIt) {
  const testing::TestRoot root;
  {
    const FolderLock lock(root.path());
    EXPECT_THAT(refusal(root.path()), HasSubstr("pid " + std::to_string(getpid())));
    EXPECT_EQ(FolderLock::try_take(root.path()), nullptr);
    EXPECT_TRUE(holds_nothing(root.path()));
  }
  EXPECT_FALSE(fs::exists(root / kLockName));
  EXPECT_NE(FolderLock::try_take(root.path()), nullptr);
}

TEST(FolderLock, EndsWithItsProcessHoweverThatEnds) {
  const testing::TestRoot root;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const FolderLock lock(root.path());
    const ssize_t told = write(ready[1], "x", 1);
    pause();
    _exit(told == 1 ? 0 : 1);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_THAT(refusal(root.path()), HasSubstr("pid " + std::to_string(child)));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(root / kLockName)) << "a killed process leaves the file";
  EXPECT_EQ(refusal(root.path()), "");
  close(ready[0]);
  close(ready[1]);
}

TEST(FolderLock, IsWaitedForWhileItsHolderEnds) {
  const testing::TestRoot root;
  auto held = std::make_unique<FolderLock>(root.path());
  EXPECT_THROW(FolderLock::take_within(root.path(), std::chrono::milliseconds(50)), UserError);
  std::thread holder([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    held.reset();
  });
  EXPECT_NE(FolderLock::take_within(root.path(), std::chrono::seconds(20)), nullptr);
  holder.join();
}

TEST(FolderLock, AFolderThatCannotBeWrittenIsAnError) {
  const testing::TestRoot root;
  EXPECT_THAT(refusal(root / "absent"), HasSubstr("cannot be written"));
  root.write("victim", "mine");
  fs::create_symlink(root / "victim", root / kLockName);
  EXPECT_THAT(refusal(root.path()), HasSubstr("cannot be written"));
  EXPECT_EQ(testing::TestRoot::read(root / "victim"), "mine");
}

// Where the kernel has no locks.
constexpr LockTimes kFast{.heartbeat = 0.05, .stale = 0.6};

TEST(FolderLockWithoutKernelLocks, AHolderThatTouchesItsFileKeepsItAndAStaleOneLosesIt) {
  const testing::TestRoot root;
  std::string warned;
  {
    const HeartbeatLock first(root.path(), kFast);
    EXPECT_THROW(HeartbeatLock(root.path(), kFast), UserError);
    EXPECT_THROW(HeartbeatLock(root.path(), kFast), UserError) << "still";
  }
  EXPECT_FALSE(fs::exists(root / kLockName));
  root.write(kLockName, "host7, pid 4711, since yesterday\n");
  const auto begin = std::chrono::steady_clock::now();
  const HeartbeatLock second(root.path(), kFast);
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(300)) << "it might have been alive";
  EXPECT_THAT(testing::TestRoot::read(root / kLockName), HasSubstr(std::to_string(getpid())));
}

TEST(FolderLockWithoutKernelLocks, OfSeveralThatTakeOverAStaleOneOneGetsIt) {
  const testing::TestRoot root;
  root.write(kLockName, "host7, pid 4711, since yesterday\n");
  std::atomic<int> taken = 0, refused = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      try {
        const HeartbeatLock lock(root.path(), kFast);
        ++taken;
        std::this_thread::sleep_for(std::chrono::seconds(3));
      } catch (const UserError&) {
        ++refused;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, 1);
  EXPECT_EQ(refused, 5);
}

}  // namespace
}  // namespace hone
