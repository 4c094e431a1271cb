#include "core/thread_pool.h"

#include <algorithm>
#include <utility>

namespace hone {

namespace {
thread_local bool inside_loop = false;

/// How often a waiting thread looks before it sleeps: kernels of a training step follow one another within
/// microseconds, and waking a sleeping thread costs more than most of them.
constexpr int kSpins = 2000;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}
}  // namespace

ThreadPool::ThreadPool(int threads) {
  if (threads <= 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

int64_t ThreadPool::take_tasks(int thread) {
  int64_t tasks = 0;
  for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_; ++tasks) {
    try {
      (*body_)(i, thread);
    } catch (...) {
      const std::lock_guard lock(mutex_);
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

void ThreadPool::work(int thread) {
  uint64_t seen = 0;
  while (true) {
    for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) pause();
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      seen = generation_.load();
      if (stopping_) return;
    }
    run_tasks(thread);
    if (active_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      const std::lock_guard lock(mutex_);
      done_.notify_one();
    }
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
  {
    const std::lock_guard lock(mutex_);
    body_ = &body;
    count_ = count;
    next_.store(0);
    active_.store(static_cast<int>(workers_.size()));
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  run_tasks(0);
  for (int spin = 0; spin < kSpins && active_.load(std::memory_order_acquire) != 0; ++spin) pause();
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return active_.load() == 0; });
  body_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  grain = std::max<int64_t>(grain, 1);
  parallel_for((count + grain - 1) / grain, [&](int64_t i, int) { body(i * grain, std::min(count, (i + 1) * grain)); });
}

}  // namespace hone
