#include "dist/control/local_process.h"

#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>

#include "dist/control/socket.h"

namespace hone {

namespace {

std::string link_of(const char* path) {
  std::error_code error;
  return std::filesystem::read_symlink(path, error).string();
}

/// Field 22 of /proc/PID/stat; 0 if there is no such process.
int64_t start_time_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = text.rfind(')');  // the name may contain any characters
  if (name_end == std::string::npos) return 0;
  std::istringstream rest(text.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) rest >> skipped;
  int64_t time = 0;
  rest >> time;
  return time;
}

}  // namespace

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

bool ProcessPlace::same_processes(const ProcessPlace& other) const {
  return !boot.empty() && boot == other.boot && !pid_namespace.empty() && pid_namespace == other.pid_namespace;
}

bool ProcessPlace::same_loopback(const ProcessPlace& other) const {
  return !boot.empty() && boot == other.boot && !network.empty() && network == other.network;
}

ProcessPlace own_place() {
  ProcessPlace place;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> place.boot;
  place.pid_namespace = link_of("/proc/self/ns/pid");
  place.network = link_of("/proc/self/ns/net");
  place.start_time = start_time_of("self");
  return place;
}

bool end_process(int64_t pid, const ProcessPlace& place) {
  if (pid <= 1 || pid == ::getpid() || place.start_time <= 0 || !place.same_processes(own_place())) return false;
  // The descriptor refers to one process even if its id is reused later.
  const Socket process(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
  if (!process.open() || start_time_of(std::to_string(pid)) != place.start_time) return false;
  return ::syscall(SYS_pidfd_send_signal, process.descriptor(), SIGKILL, nullptr, 0) == 0;
}

}  // namespace hone
