// For loops that wait for another thread without sleeping.
#pragma once

namespace hone {

/// Tells the core that it waits, so that its other hyperthread runs on.
inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace hone
