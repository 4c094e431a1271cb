// NUMA: which cores are near which memory, on machines where that differs.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace hone {

/// Cores and memory that are near each other.
struct NumaNode {
  int number = 0;
  std::vector<int> cores;  ///< that this process may run on
};

/// The nodes that have such cores, by number; `folder` is Linux's description of them. Empty where it says nothing.
std::vector<NumaNode> numa_nodes(const std::filesystem::path& folder = "/sys/devices/system/node");

/// Cores that the calling thread may run on, at least 1: those of a container or a launcher's binding, not the host's.
int usable_cores();

/// "0-3,8" is 0, 1, 2, 3, 8. Stops at what is no list.
std::vector<int> parse_core_list(const std::string& text);

/// The calling thread runs on these cores from here on; what does not allow that is ignored, since it only costs speed.
void run_on(const NumaNode& node);

/// Pages of a mapping that are not touched yet will lie on all nodes in turn, whoever touches them first. Nothing on a
/// machine of one node.
void interleave_pages(void* memory, size_t bytes);

}  // namespace hone
