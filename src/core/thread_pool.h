// ThreadPool: the threads that CPU kernels share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hone {

/// Who is told what the threads of a pool do.
class LoopObserver {
 public:
  using Time = std::chrono::steady_clock::time_point;

  virtual ~LoopObserver() = default;
  /// Called on each thread that came to a loop before all of its tasks were done, while the loop lasts: it ran `tasks`
  /// (perhaps none) of them from begin to end. What a loop inside of a task did may be told before, and lies within it.
  virtual void ran(int thread, int64_t tasks, Time begin, Time end) noexcept = 0;
};

/// A fixed set of threads for fork-join loops. One loop runs at a time; loops do not nest (a nested call runs inline).
/// A loop ends when its tasks are done: it waits for no thread that has not come to it, be it asleep or without a core
/// because another program has it. Threads look for the next loop for a moment, then sleep. On a machine of several
/// NUMA nodes they are bound to the nodes in turn.
class ThreadPool {
 public:
  /// `threads` in all, the caller of parallel_for included; 0 means all cores.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(i, thread) for each i in [0, count), thread in [0, size()). Which thread runs which i is not fixed: a
  /// body must write only what i owns, so that results do not depend on the number of threads.
  /// The first exception of a body is thrown here after all have ended.
  void parallel_for(int64_t count, const std::function<void(int64_t i, int thread)>& body);

  /// Who is told of each loop from here on, or null: one test of a pointer for each thread and loop. Not during one.
  void set_observer(LoopObserver* observer) { observer_ = observer; }

  /// parallel_for over ranges: body(begin, end) with end - begin <= grain.
  void parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

 private:
  void work(int thread);
  /// Joins the last loop unless that is closed or was seen before; `seen` becomes its number.
  bool enter(uint32_t& seen);
  void leave();
  void run_tasks(int thread);
  /// The calls of a thread, until no task is left; returns how many there were.
  int64_t take_tasks(int thread);

  std::vector<std::thread> workers_;
  const std::function<void(int64_t, int)>* body_ = nullptr;
  int64_t count_ = 0;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  LoopObserver* observer_ = nullptr;
  // What many threads change, on cache lines of their own.
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint32_t> loops_{0};  ///< that have begun; workers sleep on it
  /// The number of the last loop, whether workers may still enter it, and how many are inside.
  alignas(64) std::atomic<uint64_t> entrance_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace hone
