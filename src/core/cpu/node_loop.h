// Loops whose items are near one NUMA node each, such as products with weights in a node's memory.
#pragma once

#include <cstdint>
#include <functional>

#include "core/cpu/thread_pool.h"

namespace hone {

/// pool.parallel_for() over items with nodes: node_of(i) in [0, pool.nodes()). A thread takes the items of its own node
/// first, in order, then those that other nodes have left, so that no core waits while there is work. As there, a body
/// must only write data of i: results do not depend on the nodes. With one node it is parallel_for(), and node_of is
/// not called.
void parallel_for_on_nodes(ThreadPool& pool, int64_t count, const std::function<int(int64_t i)>& node_of,
                           const std::function<void(int64_t i, int thread)>& body);

}  // namespace hone
