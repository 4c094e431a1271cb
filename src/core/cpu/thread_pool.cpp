#include "core/cpu/thread_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/cpu/spin_wait.h"

namespace hone {

namespace {
thread_local bool inside_loop = false;

/// Number of polls of a waiting thread before it sleeps: kernels of a training step follow one another within
/// microseconds, and waking a sleeping thread costs more than most of them.
constexpr int kSpins = 2000;

// A generation: the loop's number in the upper half, then kOpen while workers may enter it, then the number of workers
// inside. A loop ends when its tasks are done; it does not wait for workers that have not entered, asleep or without a
// core.
constexpr uint64_t kOpen = uint64_t{1} << 31, kInside = kOpen - 1;
uint64_t number_of(uint64_t generation) { return generation >> 32; }

/// Joins the current loop unless it is closed or was seen before; `seen` becomes its number.
bool enter(std::atomic<uint64_t>& generation, uint64_t& seen) {
  uint64_t now = generation.load(std::memory_order_acquire);
  while ((now & kOpen) != 0 && number_of(now) != seen) {
    if (!generation.compare_exchange_weak(now, now + 1, std::memory_order_acquire)) continue;
    seen = number_of(now);
    return true;
  }
  seen = number_of(now);
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  constexpr int kMostThreads = 4096;
  if (threads <= 0) threads = usable_cores();
  if (threads > kMostThreads) {
    throw UserError(fmt::format("threads is {}, at most {} are allowed", threads, kMostThreads), "threads",
                    "remove it to use all cores");
  }
  active_.store(threads - 1);
  if (threads > 1) nodes_ = nodes_in_use();
  if (nodes_.size() < 2) nodes_.clear();
  std::vector<int> nodes_of_cores;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    nodes_of_cores.insert(nodes_of_cores.end(), nodes_[n].cores.size(), static_cast<int>(n));
  }
  for (size_t thread = 0; !nodes_.empty() && thread < static_cast<size_t>(threads); ++thread) {
    node_of_thread_.push_back(nodes_of_cores[thread * nodes_of_cores.size() / static_cast<size_t>(threads)]);
  }
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] {
      bind(thread);
      work(thread);
    });
  }
}

void ThreadPool::bind(int thread) const {
  if (!nodes_.empty()) run_on(nodes_[static_cast<size_t>(node_of(thread))]);
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    generation_.store((number_of(generation_.load()) + 1) << 32);
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
  const auto waits = [&] { return number_of(generation_.load()) == seen; };
  while (true) {
    for (int spin = 0; spin < kSpins && waits(); ++spin) cpu_pause();
    if (waits()) {
      std::unique_lock lock(mutex_);
      active_.fetch_sub(1);  // before the last poll: a loop that begins after it sees a sleeper
      wake_.wait(lock, [&] { return !waits(); });
      active_.fetch_add(1);
    }
    if (!enter(generation_, seen)) {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      continue;
    }
    run_tasks(thread);
    const uint64_t before = generation_.fetch_sub(1, std::memory_order_acq_rel);
    if ((before & (kOpen | kInside)) != 1) continue;
    const std::lock_guard lock(mutex_);  // the loop is closed, and this was the last worker
    done_.notify_one();
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
  generation_.store((number_of(generation_.load()) + 1) << 32 | kOpen);
  if (active_.load() < static_cast<int>(workers_.size())) {
    { const std::lock_guard lock(mutex_); }  // threads that polled before the loop began are asleep now
    wake_.notify_all();
  }
  run_tasks(0);
  generation_.fetch_and(~kOpen, std::memory_order_acq_rel);
  const auto all_left = [&] { return (generation_.load(std::memory_order_acquire) & kInside) == 0; };
  for (int spin = 0; spin < kSpins && !all_left(); ++spin) cpu_pause();
  if (!all_left()) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, all_left);
  }
  body_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  grain = std::max<int64_t>(grain, 1);
  parallel_for((count + grain - 1) / grain, [&](int64_t i, int) { body(i * grain, std::min(count, (i + 1) * grain)); });
}

}  // namespace hone
