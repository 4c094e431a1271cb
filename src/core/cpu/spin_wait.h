// Busy waiting for another thread: in loops of tasks, where the awaited task has started and ends soon.
#pragma once

#include <atomic>
#include <thread>

namespace hone {

/// Hints to the core that the thread waits, so its other hyperthread runs.
inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/// Waits until earlier tasks of a loop (core/cpu/thread_pool.h) have counted up to `count`. Tasks start in rising
/// order, so a task with a lower number has started, and the wait ends. After some 4,000 polls it yields the core.
template <class Counter>
void wait_for_tasks(const Counter& done, decltype(done.load()) count) {
  constexpr int kSpins = 4000;
  for (int spin = 0; done.load(std::memory_order_acquire) < count; ++spin) {
    if (spin > kSpins) std::this_thread::yield();
    cpu_pause();
  }
}

}  // namespace hone
