// AMX tile registers in memory, for builds with HONE_EMULATE_AMX: they run the code for AMX, and its tests, on a CPU
// that has AVX-512 with BF16 and VBMI but no tiles. Not for use: AVX-512's own kernels are faster.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS, TDPBSSD, TILELOADD.
#pragma once

#include <xmmintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hone::amx {

inline constexpr int kTileRows = 16;      ///< rows of 64 bytes
inline constexpr int kTileRegisters = 8;  ///< tmm0 to tmm7

/// The registers of a thread, and whether configure_tiles() has run: before it, their use is an illegal instruction.
struct EmulatedTiles {
  alignas(64) std::byte rows[kTileRegisters][kTileRows][64];
  bool configured;
};
inline constinit thread_local EmulatedTiles emulated_tiles{};

namespace {

template <int Tile>
std::byte (&tile())[kTileRows][64] {
  static_assert(Tile >= 0 && Tile < kTileRegisters);
  if (!emulated_tiles.configured) __builtin_trap();
  return emulated_tiles.rows[Tile];
}

template <int Tile>
void zero() {
  std::memset(tile<Tile>(), 0, sizeof(emulated_tiles.rows[Tile]));
}
template <int Tile>
void load(const void* rows, int64_t row_bytes) {
  auto& to = tile<Tile>();
  for (int r = 0; r < kTileRows; ++r) std::memcpy(to[r], static_cast<const std::byte*>(rows) + r * row_bytes, 64);
}
template <int Tile>
void load_past_level_1(const void* rows, int64_t row_bytes) {
  load<Tile>(rows, row_bytes);
}
template <int Tile>
void store(void* rows, int64_t row_bytes = 64) {
  const auto& from = tile<Tile>();
  for (int r = 0; r < kTileRows; ++r) std::memcpy(static_cast<std::byte*>(rows) + r * row_bytes, from[r], 64);
}

/// A row of 16 pairs of bfloat16 as float32: the first of each pair, or the second.
inline void widen(const std::byte* row, float (&first)[16], float (&second)[16]) {
  uint32_t pairs[16], low[16], high[16];
  std::memcpy(pairs, row, 64);
  for (int n = 0; n < 16; ++n) low[n] = pairs[n] << 16, high[n] = pairs[n] & 0xffff0000u;
  std::memcpy(first, low, 64);
  std::memcpy(second, high, 64);
}

/// A row of sums += a row of `left` x `right`. As the instruction does it: the products of even and of odd k are two
/// chains from zero, whose sum is added.
inline void add_bf16_row(std::byte* sums, const std::byte* left, const float (&even)[16][16],
                         const float (&odd)[16][16]) {
  float a_even[16], a_odd[16], of_even[16] = {}, of_odd[16] = {}, sum[16];
  widen(left, a_even, a_odd);
  for (int k = 0; k < 16; ++k) {
    for (int n = 0; n < 16; ++n) {
      of_even[n] += a_even[k] * even[k][n];
      of_odd[n] += a_odd[k] * odd[k][n];
    }
  }
  std::memcpy(sum, sums, 64);
  for (int n = 0; n < 16; ++n) sum[n] += of_even[n] + of_odd[n];
  std::memcpy(sums, sum, 64);
}

inline void add_int8_row(std::byte* sums, const std::byte* left, const std::byte (&right)[kTileRows][64]) {
  int32_t sum[16];
  std::memcpy(sum, sums, 64);
  for (int k = 0; k < 64; ++k) {
    const auto a = static_cast<int32_t>(static_cast<int8_t>(left[k]));
    for (int n = 0; n < 16; ++n) sum[n] += a * static_cast<int8_t>(right[k / 4][4 * n + k % 4]);
  }
  std::memcpy(sums, sum, 64);
}

/// sums += left x right: bfloat16 to float32, without subnormal numbers and whatever the thread's mode, or signed int8
/// to int32.
template <int Sums, int Left, int Right, bool Int8 = false>
void multiply_add() {
  auto& sums = tile<Sums>();
  const auto &left = tile<Left>(), &right = tile<Right>();
  if constexpr (Int8) {
    for (int m = 0; m < kTileRows; ++m) add_int8_row(sums[m], left[m], right);
  } else {
    constexpr unsigned kNoExceptionsFlushToZeroSubnormalsAreZero = 0x1f80 | 0x8000 | 0x0040;
    const unsigned before = _mm_getcsr();
    _mm_setcsr(kNoExceptionsFlushToZeroSubnormalsAreZero);
    float even[16][16], odd[16][16];
    for (int k = 0; k < 16; ++k) widen(right[k], even[k], odd[k]);
    for (int m = 0; m < kTileRows; ++m) add_bf16_row(sums[m], left[m], even, odd);
    _mm_setcsr(before);
  }
}

inline void configure_tiles() { emulated_tiles.configured = true; }

}  // namespace
}  // namespace hone::amx
