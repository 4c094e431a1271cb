// ThreadPool: the threads that CPU kernels share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/cpu/numa.h"

namespace hone {

/// Receives reports on the work of a pool's threads.
class LoopObserver {
 public:
  using Time = std::chrono::steady_clock::time_point;

  virtual ~LoopObserver() = default;
  /// Called on each thread that joined, before a loop ends: it ran `tasks` (may be 0) from begin to end. A loop inside
  /// a task may be reported before the task; its times are within those of the task.
  virtual void ran(int thread, int64_t tasks, Time begin, Time end) noexcept = 0;
};

/// Threads for fork-join loops: one at a time, not nested (a nested call runs inline). A loop does not wait for a late
/// thread. On a machine with several NUMA nodes (core/cpu/numa.h) the threads are spread over all of them, as the cores
/// are, and each is bound to the cores of its node.
class ThreadPool {
 public:
  /// `threads` in all, including the caller of parallel_for; 0: all cores. Throws UserError for more than 4096.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// NUMA nodes that the threads are spread over: 1 if none is bound to a node.
  int nodes() const { return nodes_.empty() ? 1 : static_cast<int>(nodes_.size()); }
  /// The node of a thread, in [0, nodes()).
  int node_of(int thread) const { return nodes_.empty() ? 0 : node_of_thread_[static_cast<size_t>(thread)]; }
  /// Binds the calling thread, whose only loops are this pool's, to the node of thread 0, which it is in them.
  void bind_caller() const { bind(0); }

  /// Calls body(i, thread) for each i in [0, count), thread in [0, size()). The assignment of i to threads is not
  /// fixed: a body must only write data of i, so results do not depend on the number of threads. The first exception of
  /// a body is thrown here after all have ended.
  void parallel_for(int64_t count, const std::function<void(int64_t i, int thread)>& body);

  /// Sets the observer of later loops, or null. Costs one pointer test per thread and loop. Must not be called during a
  /// loop.
  void set_observer(LoopObserver* observer) { observer_ = observer; }

  /// parallel_for over ranges: body(begin, end) with end - begin <= grain.
  void parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

 private:
  void bind(int thread) const;
  void work(int thread);
  void run_tasks(int thread);
  /// Runs tasks on this thread until none is left; returns their number.
  int64_t take_tasks(int thread);

  std::vector<NumaNode> nodes_;      ///< empty unless there are several
  std::vector<int> node_of_thread_;  ///< the node of each of size() threads, if there are nodes
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int64_t, int)>* body_ = nullptr;
  std::atomic<int64_t> next_{0};
  int64_t count_ = 0;
  std::atomic<uint64_t> generation_{0};  ///< the state of loops: number, whether workers may enter, workers inside
  std::atomic<int> active_{0};           ///< workers that do not sleep
  std::exception_ptr error_;
  LoopObserver* observer_ = nullptr;
  bool stopping_ = false;
};

}  // namespace hone
