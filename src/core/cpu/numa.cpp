#include "core/cpu/numa.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/cpu/page_memory.h"

namespace hone {

namespace {

/// Those of the calling thread; none if the system does not say.
cpu_set_t allowed_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) CPU_ZERO(&allowed);
  return allowed;
}

/// Sets the policy of whole pages for the nodes of these numbers; false if the system refuses.
bool place_pages(void* memory, size_t bytes, int policy, const std::vector<int>& numbers) {
  constexpr size_t kWordBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, 16> mask{};  // bits for 1024 nodes, which are more than Linux has
  for (const int number : numbers) {
    const auto bit = static_cast<size_t>(number);
    if (bit < kWordBits * mask.size()) mask[bit / kWordBits] |= 1ul << bit % kWordBits;
  }
  return syscall(SYS_mbind, memory, bytes, policy, mask.data(), kWordBits * mask.size() + 1, 0u) == 0;
}

}  // namespace

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

std::string core_list(const std::vector<int>& cores) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < cores.size(); begin = end) {
    const int first = cores[begin];
    while (end < cores.size() && cores[end] == first + static_cast<int>(end - begin)) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", first);
    if (end - begin > 1) text += fmt::format("-{}", cores[end - 1]);
  }
  return text;
}

std::vector<NumaNode> numa_nodes(const std::filesystem::path& folder) {
  const cpu_set_t allowed = allowed_cores();
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

std::vector<NumaNode> divided_nodes(const std::vector<NumaNode>& real, int count) {
  std::vector<std::pair<int, int>> cores;  // with the number of their node
  for (const NumaNode& node : real) {
    for (const int core : node.cores) cores.emplace_back(core, node.number);
  }
  std::vector<NumaNode> divided;
  const size_t all = cores.size(), parts = static_cast<size_t>(count);
  for (size_t n = 0; n < parts; ++n) {
    const size_t begin = n * all / parts, end = std::max((n + 1) * all / parts, begin + 1);
    NumaNode node{.number = cores[begin].second, .cores = {}};
    for (size_t i = begin; i < end; ++i) node.cores.push_back(cores[i].first);
    divided.push_back(std::move(node));
  }
  return divided;
}

std::vector<NumaNode> nodes_in_use() {
  std::vector<NumaNode> real = numa_nodes();
  if (real.empty()) {
    const cpu_set_t allowed = allowed_cores();
    real.emplace_back();
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &allowed)) real.front().cores.push_back(core);
    }
    if (real.front().cores.empty()) real.front().cores.push_back(0);
  }
  const char* const stated = std::getenv("HONE_NUMA_NODES");
  if (stated == nullptr || *stated == '\0') return real;
  constexpr int kMost = 64;
  const char* const end = stated + std::strlen(stated);
  int count = 0;
  if (const auto parsed = std::from_chars(stated, end, count);
      parsed.ec != std::errc() || parsed.ptr != end || count < 1 || count > kMost) {
    throw UserError(fmt::format("HONE_NUMA_NODES is '{}'", stated), "environment",
                    fmt::format("write a number of nodes from 1 to {}, or unset it", kMost));
  }
  return divided_nodes(real, count);
}

NodeMemory memory_of_node(int number, const std::filesystem::path& folder) {
  std::ifstream file(folder / fmt::format("node{}", number) / "meminfo");
  NodeMemory memory;
  std::string node, of, name, unit;
  for (uint64_t kilobytes = 0; file >> node >> of >> name >> kilobytes;) {  // Node 0 MemTotal: 8151440 kB
    if (name == "MemTotal:") memory.total = kilobytes * 1024;
    if (name == "MemFree:") memory.free = kilobytes * 1024;
    std::getline(file, unit);
  }
  return memory;
}

int usable_cores() {
  const cpu_set_t allowed = allowed_cores();
  const int count = CPU_COUNT(&allowed);
  return count > 0 ? count : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void run_on(const NumaNode& node) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const int core : node.cores) CPU_SET(core, &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
}

bool may_place_pages() {
  static const bool allowed = [] {
    const size_t bytes = page_size();
    void* const page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return false;
    const bool done = place_pages(page, bytes, MPOL_PREFERRED, {nodes_in_use().front().number});
    munmap(page, bytes);
    return done;
  }();
  return allowed;
}

void interleave_pages(void* memory, size_t bytes) {
  static const std::vector<int> numbers = [] {
    std::vector<int> all;
    for (const NumaNode& node : nodes_in_use()) all.push_back(node.number);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }();
  if (numbers.size() > 1) place_pages(memory, bytes, MPOL_INTERLEAVE, numbers);
}

void spread_items(std::byte* memory, size_t bytes, int64_t count) {
  const std::vector<NumaNode> nodes = nodes_in_use();
  if (nodes.size() < 2 || bytes == 0) return;
  const int parts = static_cast<int>(nodes.size());
  const size_t item = bytes / static_cast<size_t>(count);
  HONE_ASSERT(item * static_cast<size_t>(count) == bytes, "equal items");
  const auto address = [&](int node) {
    std::byte* const at = memory + static_cast<size_t>(first_item_of_node(node, count, parts)) * item;
    return at - reinterpret_cast<uintptr_t>(at) % page_size();
  };
  for (int n = 0; n < parts; ++n) {
    std::byte* const begin = address(n);
    const auto size = static_cast<size_t>((n + 1 < parts ? address(n + 1) : memory + bytes) - begin);
    const NumaNode& node = nodes[static_cast<size_t>(n)];
    if (size == 0) continue;
    if (!may_place_pages() || !place_pages(begin, size, MPOL_PREFERRED, {node.number})) touch_pages(begin, size, &node);
  }
}

void touch_pages(std::byte* memory, size_t bytes, const NumaNode* node) {
  constexpr size_t kPage = 4096, kBytesPerThread = size_t{1} << 30;
  const size_t cores = node != nullptr ? node->cores.size() : static_cast<size_t>(usable_cores());
  const size_t threads = std::clamp<size_t>(bytes / kBytesPerThread, 1, std::min<size_t>(cores, 16));
  const size_t share = (bytes / threads + kPage) / kPage * kPage;
  std::vector<std::thread> workers;
  for (size_t begin = 0; begin < bytes; begin += share) {
    workers.emplace_back([=] {
      if (node != nullptr) run_on(*node);
      for (size_t i = begin; i < std::min(begin + share, bytes); i += kPage) memory[i] = std::byte{0};
    });
  }
  for (std::thread& worker : workers) worker.join();
}

}  // namespace hone
