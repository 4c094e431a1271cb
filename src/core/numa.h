// NUMA: which cores are near which memory, on machines with several nodes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace hone {

/// Cores and the memory near them.
struct NumaNode {
  int number = 0;
  std::vector<int> cores;  ///< those that this process may run on
};

/// The nodes that have such cores, by number. `folder` is Linux's description of the nodes; empty if it has none.
std::vector<NumaNode> numa_nodes(const std::filesystem::path& folder = "/sys/devices/system/node");

/// Number of cores that the calling thread may run on, at least 1: those of a container or a launcher's binding, not
/// the host's.
int usable_cores();

/// "0-3,8" is 0, 1, 2, 3, 8. Stops at a syntax error.
std::vector<int> parse_core_list(const std::string& text);

/// Binds the calling thread to these cores. Ignores errors, since they only cost speed.
void run_on(const NumaNode& node);

/// Interleaves the untouched pages of a mapping over all nodes, whichever thread touches them first. Does nothing on a
/// machine with one node.
void interleave_pages(void* memory, size_t bytes);

}  // namespace hone
