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

namespace hone {

/// Who is told what the threads of a pool do.
class LoopObserver {
 public:
  using Time = std::chrono::steady_clock::time_point;

  virtual ~LoopObserver() = default;
  /// Called on each thread that came in time, before a loop ends: it ran `tasks` (perhaps none) from begin to end.
  /// What a loop inside of a task did may be told before, and lies within it.
  virtual void ran(int thread, int64_t tasks, Time begin, Time end) noexcept = 0;
};

/// Threads for fork-join loops: one at a time, not nested (a nested call runs inline). No loop waits for a late thread.
class ThreadPool {
 public:
  /// `threads` in all, the caller of parallel_for included; 0 means all cores. UserError for more than 4096.
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
  void run_tasks(int thread);
  /// The calls of a thread, until no task is left; returns how many there were.
  int64_t take_tasks(int thread);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int64_t, int)>* body_ = nullptr;
  std::atomic<int64_t> next_{0};
  int64_t count_ = 0;
  std::atomic<uint64_t> generation_{0};  ///< of loops: number, whether it may be entered, workers inside
  std::atomic<int> active_{0};           ///< workers that do not sleep
  std::exception_ptr error_;
  LoopObserver* observer_ = nullptr;
  bool stopping_ = false;
};

}  // namespace hone
