// Waiting for another thread without sleeping: in loops of tasks, where what is waited for has started and ends soon.
#pragma once

#include <atomic>
#include <thread>

namespace hone {

/// Tells the core that it waits, so that its other hyperthread runs on.
inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/// Waits until earlier tasks of a loop (core/thread_pool.h) have counted up to `count`. Tasks start in rising order, so
/// one with a lower number has started: the wait ends. After some 4,000 looks another thread may have the core.
template <class Counter>
void wait_for_tasks(const Counter& done, decltype(done.load()) count) {
  constexpr int kSpins = 4000;
  for (int spin = 0; done.load(std::memory_order_acquire) < count; ++spin) {
    if (spin > kSpins) std::this_thread::yield();
    cpu_pause();
  }
}

}  // namespace hone
