#include "core/thread_pool.h"

#include <algorithm>
#include <utility>

#include "core/numa.h"

namespace hone {

namespace {
thread_local bool inside_loop = false;

/// How often a waiting thread looks before it sleeps: kernels of a training step follow one another within
/// microseconds, and waking a sleeping thread costs more than most of them.
constexpr int kSpins = 2000;

// The entrance: the loop's number in the upper half, then kOpen, then how many are inside.
constexpr uint64_t kOpen = uint64_t{1} << 31, kInside = kOpen - 1;
uint32_t number_of(uint64_t entrance) { return static_cast<uint32_t>(entrance >> 32); }

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}
}  // namespace

ThreadPool::ThreadPool(int threads) {
  if (threads <= 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const std::vector<NumaNode> nodes = threads > 1 ? numa_nodes() : std::vector<NumaNode>{};
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread, nodes] {
      if (nodes.size() > 1) run_on(nodes[static_cast<size_t>(thread) % nodes.size()]);
      work(thread);
    });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  loops_.fetch_add(1);
  loops_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

int64_t ThreadPool::take_tasks(int thread) {
  int64_t tasks = 0;
  for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_; ++tasks) {
    try {
      (*body_)(i, thread);
    } catch (...) {
      const std::lock_guard lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
      next_.store(count_);
    }
  }
  return tasks;
}

void ThreadPool::run_tasks(int thread) {
  inside_loop = true;
  if (observer_ == nullptr) {
    take_tasks(thread);
  } else {
    const LoopObserver::Time begin = std::chrono::steady_clock::now();
    const int64_t tasks = take_tasks(thread);
    observer_->ran(thread, tasks, begin, std::chrono::steady_clock::now());
  }
  inside_loop = false;
}

bool ThreadPool::enter(uint32_t& seen) {
  uint64_t entrance = entrance_.load(std::memory_order_relaxed);
  while ((entrance & kOpen) != 0 && number_of(entrance) != seen) {
    if (!entrance_.compare_exchange_weak(entrance, entrance + 1, std::memory_order_acquire)) continue;
    seen = number_of(entrance);
    return true;
  }
  seen = number_of(entrance);
  return false;
}

void ThreadPool::leave() {
  const uint64_t before = entrance_.fetch_sub(1, std::memory_order_release);
  if ((before & (kOpen | kInside)) == 1) entrance_.notify_one();  // it is closed, and this was the last
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  while (true) {
    for (int spin = 0; spin < kSpins && loops_.load(std::memory_order_acquire) == seen; ++spin) pause();
    loops_.wait(seen);
    if (stopping_.load()) return;
    if (!enter(seen)) continue;
    run_tasks(thread);
    leave();
  }
}

void ThreadPool::parallel_for(int64_t count, const std::function<void(int64_t, int)>& body) {
  if (count <= 0) return;
  if (count == 1 || workers_.empty() || inside_loop) {
    LoopObserver* const observer = inside_loop ? nullptr : observer_;
    const LoopObserver::Time begin = observer != nullptr ? std::chrono::steady_clock::now() : LoopObserver::Time();
    for (int64_t i = 0; i < count; ++i) body(i, 0);
    if (observer != nullptr) observer->ran(0, count, begin, std::chrono::steady_clock::now());
    return;
  }
  body_ = &body;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  const uint32_t number = loops_.load(std::memory_order_relaxed) + 1;
  entrance_.store(uint64_t{number} << 32 | kOpen, std::memory_order_release);
  loops_.store(number);
  loops_.notify_all();
  run_tasks(0);
  uint64_t entrance = entrance_.fetch_and(~kOpen, std::memory_order_acquire) & ~kOpen;
  for (int spin = 0; (entrance & kInside) != 0; ++spin, entrance = entrance_.load(std::memory_order_acquire)) {
    spin < kSpins ? pause() : entrance_.wait(entrance);
  }
  body_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  grain = std::max<int64_t>(grain, 1);
  parallel_for((count + grain - 1) / grain, [&](int64_t i, int) { body(i * grain, std::min(count, (i + 1) * grain)); });
}

}  // namespace hone
