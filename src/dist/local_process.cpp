#include "dist/local_process.h"

#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <system_error>

namespace hone {

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string own_cores() {
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0) return "";
  std::string text;
  for (int begin = 0; begin < CPU_SETSIZE; ++begin) {
    if (!CPU_ISSET(begin, &cores)) continue;
    int end = begin;
    while (end + 1 < CPU_SETSIZE && CPU_ISSET(end + 1, &cores)) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(begin) + "-" + std::to_string(end);
    begin = end;
  }
  return text;
}

void end_same_program(int64_t pid) {
  if (pid <= 1 || pid == ::getpid()) return;
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return;
  const std::filesystem::path other = std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", error);
  if (!error && own == other) ::kill(static_cast<pid_t>(pid), SIGKILL);
}

}  // namespace hone
