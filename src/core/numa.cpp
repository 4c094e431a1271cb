#include "core/numa.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

namespace hone {

std::vector<int> parse_core_list(const std::string& text) {
  std::vector<int> cores;
  const char *at = text.data(), *const end = at + text.size();
  while (at < end) {
    int first = 0;
    auto parsed = std::from_chars(at, end, first);
    if (parsed.ec != std::errc()) break;
    int last = first;
    if (parsed.ptr < end && *parsed.ptr == '-') parsed = std::from_chars(parsed.ptr + 1, end, last);
    if (parsed.ec != std::errc()) break;
    for (int core = first; core <= last; ++core) cores.push_back(core);
    if (parsed.ptr == end || *parsed.ptr != ',') break;
    at = parsed.ptr + 1;
  }
  return cores;
}

std::vector<NumaNode> numa_nodes(const std::filesystem::path& folder) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return {};
  std::vector<NumaNode> nodes;
  std::error_code no_folder;
  for (const auto& entry : std::filesystem::directory_iterator(folder, no_folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("node") || name.size() == 4 || name.find_first_not_of("0123456789", 4) != name.npos) continue;
    std::string list;
    std::getline(std::ifstream(entry.path() / "cpulist"), list);
    NumaNode node{.number = std::stoi(name.substr(4)), .cores = parse_core_list(list)};
    std::erase_if(node.cores, [&](int core) { return core >= CPU_SETSIZE || !CPU_ISSET(core, &allowed); });
    if (!node.cores.empty()) nodes.push_back(std::move(node));
  }
  std::ranges::sort(nodes, {}, &NumaNode::number);
  return nodes;
}

int usable_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) return CPU_COUNT(&allowed);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void run_on(const NumaNode& node) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const int core : node.cores) CPU_SET(core, &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
}

void interleave_pages(void* memory, size_t bytes) {
  static const unsigned long mask = [] {
    unsigned long bits = 0;
    const std::vector<NumaNode> nodes = numa_nodes();
    for (const NumaNode& node : nodes) {
      if (node.number < 64) bits |= 1ul << node.number;
    }
    return nodes.size() > 1 ? bits : 0;
  }();
  if (mask == 0) return;
  constexpr int kInterleave = 3;  // MPOL_INTERLEAVE of linux/mempolicy.h
  constexpr unsigned long kMaskBits = 8 * sizeof(mask) + 1;
  syscall(SYS_mbind, memory, bytes, kInterleave, &mask, kMaskBits, 0u);
}

}  // namespace hone
