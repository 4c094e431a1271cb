#include "bounded_run.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include <chrono>
#include <thread>

#include "program.h"

extern char** environ;

namespace hone {

testing::AssertionResult BoundedRun::answered() const {
  constexpr int64_t kMostBytes = 1'200'000'000;
  const auto failure = [&](const std::string& what) {
    return testing::AssertionFailure() << what << " after " << seconds << " s, " << (peak_bytes >> 20) << " MB\n"
                                       << out.substr(0, 2000);
  };
  if (hung) return failure("it hangs");
  if (code >= 128 || code < 0) return failure("signal " + std::to_string(code - 128));
  if (code == 4) return failure("the machine failed");
  if (out.find("internal error") != std::string::npos || out.find("terminate called") != std::string::npos) {
    return failure("an error of its own");
  }
  if (code != 0 && out.empty()) return failure("no word");
  if (peak_bytes > kMostBytes) return failure("too much memory");
  if (out.find('\x1b') != std::string::npos) return failure("control sequences");
  return testing::AssertionSuccess();
}

BoundedRun run_bounded(const std::vector<std::string>& arguments) {
  constexpr auto kMostTime = std::chrono::seconds(30);
  const Folder folder;
  const std::string output = (folder / "out").string();
  std::vector<std::string> words = {"sh", "-c", "ulimit -v 6000000; exec \"$@\"", "sh", hone_program()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  BoundedRun run;
  pid_t id = -1;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(posix_spawn(&id, "/bin/sh", &files, nullptr, pointers.data(), environ), 0);
  posix_spawn_file_actions_destroy(&files);
  int status = 0;
  rusage usage{};
  while (wait4(id, &status, WNOHANG, &usage) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (std::chrono::steady_clock::now() - begin < kMostTime) continue;
    run.hung = true;
    kill(id, SIGKILL);
    wait4(id, &status, 0, &usage);
    break;
  }
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  run.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  run.peak_bytes = int64_t{usage.ru_maxrss} << 10;
  run.out = read_file(output);
  return run;
}

}  // namespace hone
