#include "session/host_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace hone {

namespace {

/// A "Name:   123 kB" line of a /proc file, in bytes; 0 if it has none.
uint64_t kilobytes_field(const char* path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with(name + ":")) return std::stoull(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

/// What the control group still allows (version 2); none without a limit.
std::optional<uint64_t> group_allowance() {
  std::ifstream limit_file("/sys/fs/cgroup/memory.max"), used_file("/sys/fs/cgroup/memory.current");
  uint64_t limit = 0, used = 0;
  if (!(limit_file >> limit) || !(used_file >> used)) return std::nullopt;
  return limit > used ? limit - used : 0;
}

}  // namespace

uint64_t available_host_memory() {
  const uint64_t available = kilobytes_field("/proc/meminfo", "MemAvailable");
  return std::min(available, group_allowance().value_or(available));
}
uint64_t allocatable_host_memory() {
  const std::optional<uint64_t> allowance = group_allowance();
  return allowance ? *allowance : available_host_memory();
}
uint64_t resident_bytes() { return kilobytes_field("/proc/self/status", "VmRSS"); }
uint64_t peak_resident_bytes() { return kilobytes_field("/proc/self/status", "VmHWM"); }

}  // namespace hone
