// NUMA: which cores are near which memory, on machines with several nodes; threads and memory near each other.
//
// Threads of a pool are spread over the nodes (core/cpu/thread_pool.h), and so are the items of a stack of equal items,
// such as the experts of a layer: each item is in the memory of one node, whose threads take its tasks first
// (core/cpu/node_loop.h). All else that several threads use is interleaved, page by page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace hone {

/// Cores and the memory near them.
struct NumaNode {
  int number = 0;          ///< Linux's, of the memory
  std::vector<int> cores;  ///< those that this process may run on
};

/// The nodes that have such cores, by number. `folder` is Linux's description of the nodes; empty if it has none.
std::vector<NumaNode> numa_nodes(const std::filesystem::path& folder = "/sys/devices/system/node");

/// The cores of `real` in order, divided into `count` nodes of nearly equal numbers of them; a core is in several nodes
/// if there are fewer cores than nodes. A node has the number of the real one of its first core. `real` is not empty.
std::vector<NumaNode> divided_nodes(const std::vector<NumaNode>& real, int count);

/// The nodes that threads and memory are spread over, at least one: numa_nodes(), or those divided into as many as the
/// environment variable HONE_NUMA_NODES states, 1 to 64. Throws UserError if it is something else.
std::vector<NumaNode> nodes_in_use();

/// Bytes of a node's memory: all and free; 0 where the system does not say. `folder` as above.
struct NodeMemory {
  uint64_t total = 0, free = 0;
};
NodeMemory memory_of_node(int number, const std::filesystem::path& folder = "/sys/devices/system/node");

/// The node, of `nodes`, of item i of `count`: consecutive items are on one node, and each has as many, up to one. 0 if
/// there are no items.
inline int node_of_item(int64_t i, int64_t count, int nodes) {
  return count > 0 ? static_cast<int>(i * nodes / count) : 0;
}
/// The first item of a node; of `nodes`, the end.
inline int64_t first_item_of_node(int node, int64_t count, int nodes) { return (node * count + nodes - 1) / nodes; }

/// Number of cores that the calling thread may run on, at least 1: those of a container or a launcher's binding, not
/// the host's.
int usable_cores();

/// "0-3,8" is 0, 1, 2, 3, 8. Stops at a syntax error.
std::vector<int> parse_core_list(const std::string& text);

/// 0, 1, 2, 3, 8 is "0-3,8". The cores rise.
std::string core_list(const std::vector<int>& cores);

/// Binds the calling thread to these cores. Ignores errors, since they only cost speed.
void run_on(const NumaNode& node);

/// Whether the system lets this process say on which node a page is (mbind(2)): a container may not.
bool may_place_pages();

/// Interleaves the untouched pages of a mapping over nodes_in_use(), whichever thread touches them first. Does nothing
/// on a machine with one node.
void interleave_pages(void* memory, size_t bytes);

/// Gives item i of `count` equal items the memory of node_of_item(i), of nodes_in_use(). A page with items of two nodes
/// is on one of them. If a node is full, the system takes memory of other nodes. The memory must be zero, and no page
/// of it may have been touched. If may_place_pages() is false, threads on each node touch its pages first, which
/// commits them. Does nothing on a machine with one node.
void spread_items(std::byte* memory, size_t bytes, int64_t count);

/// Writes a zero to every page of memory that is zero, with several threads if it has many: those of a node if one is
/// given, near which the pages then are unless they were placed.
void touch_pages(std::byte* memory, size_t bytes, const NumaNode* node = nullptr);

}  // namespace hone
