// AMX tile registers of the calling thread, for CPUs that have them; in memory in builds that emulate them.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
#pragma once

#include <cstdint>

#ifdef HONE_EMULATE_AMX
#include "core/cpu/amx_emulation.h"
#else

namespace hone::amx {
namespace {

// Inline assembly: the compiler's intrinsics need a register number as a literal, which a template parameter is not.

template <int Tile>
[[gnu::always_inline]] inline void zero() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(Tile));
}
template <int Tile>
[[gnu::always_inline]] inline void load(const void* rows, int64_t row_bytes) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(row_bytes), "i"(Tile) : "memory");
}
/// Loads with a hint to bypass the L1 cache (tileloaddt1).
template <int Tile>
[[gnu::always_inline]] inline void load_past_level_1(const void* rows, int64_t row_bytes) {
  __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(row_bytes), "i"(Tile) : "memory");
}
template <int Tile>
[[gnu::always_inline]] inline void store(void* rows, int64_t row_bytes = 64) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(row_bytes), "i"(Tile) : "memory");
}
/// sums += left x right: bfloat16 to float32, or signed int8 to int32.
template <int Sums, int Left, int Right, bool Int8 = false>
[[gnu::always_inline]] inline void multiply_add() {
  if constexpr (Int8) {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sums), "i"(Left), "i"(Right));
  } else {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sums), "i"(Left), "i"(Right));
  }
}

/// Configures all eight registers as 16 rows of 64 bytes, for the lifetime of the thread.
inline void configure_tiles() {
  struct Configuration {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static_assert(sizeof(Configuration) == 64);
  thread_local bool configured = false;
  if (configured) return;
  const Configuration configuration;
  __asm__ volatile("ldtilecfg %0" : : "m"(configuration));
  configured = true;
}

}  // namespace
}  // namespace hone::amx

#endif
