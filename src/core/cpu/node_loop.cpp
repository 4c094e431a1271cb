#include "core/cpu/node_loop.h"

#include <atomic>
#include <vector>

#include "core/base/error.h"

namespace hone {

namespace {

/// The items of a node.
struct alignas(64) Queue {
  std::vector<int64_t> items;
  std::atomic<size_t> next{0};
};

}  // namespace

void parallel_for_on_nodes(ThreadPool& pool, int64_t count, const std::function<int(int64_t i)>& node_of,
                           const std::function<void(int64_t i, int thread)>& body) {
  const int nodes = pool.nodes();
  if (nodes == 1 || count <= 1) return pool.parallel_for(count, body);
  std::vector<Queue> queues(static_cast<size_t>(nodes));
  for (int64_t i = 0; i < count; ++i) {
    const int node = node_of(i);
    HONE_ASSERT(node >= 0 && node < nodes);
    queues[static_cast<size_t>(node)].items.push_back(i);
  }
  pool.parallel_for(pool.size(), [&](int64_t, int thread) {
    try {
      for (int step = 0; step < nodes; ++step) {
        Queue& queue = queues[static_cast<size_t>((pool.node_of(thread) + step) % nodes)];
        for (size_t at; (at = queue.next.fetch_add(1, std::memory_order_relaxed)) < queue.items.size();) {
          body(queue.items[at], thread);
        }
      }
    } catch (...) {
      for (Queue& queue : queues) queue.next.store(queue.items.size());  // nothing more begins
      throw;
    }
  });
}

}  // namespace hone
