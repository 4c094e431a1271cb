#include "dist/local_process.h"

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

void end_same_program(int64_t pid) {
  if (pid <= 1 || pid == ::getpid()) return;
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return;
  const std::filesystem::path other = std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", error);
  if (!error && own == other) ::kill(static_cast<pid_t>(pid), SIGKILL);
}

}  // namespace hone
