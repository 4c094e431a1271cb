// wgmma: the matrix products of a Hopper warpgroup (128 threads), both factors bfloat16 in shared memory, sums float32
// in registers. Included by *_cuda.cu only; compiles for sm_90a alone.
//
// A factor is stored in lines of 128 bytes (64 elements), 8 of which make an atom of 1024 bytes (aligned to that);
// within an atom the 16-byte unit u of line l stands at unit u ^ l. This is what TMA writes with its 128-byte swizzle.
// "By rows": a line is 64 elements of k for one row of A (or one column n of B). "By columns": a line is 64 rows of A
// (or 64 columns n of B) for one k.
#pragma once

#include <cstdint>

namespace hone::cuda::sm90 {

/// Describes a factor to wgmma. `address` is in shared memory; it moves by 32 bytes for 16 elements of k by rows, by
/// 2048 bytes by columns. `line_group_bytes` is the distance from 64 rows of A (columns of B) to the next 64; by
/// columns only.
__device__ inline uint64_t wgmma_factor(uint32_t address, uint32_t line_group_bytes) {
  constexpr uint64_t kAtomBytes = 1024, kSwizzle128 = 1;
  constexpr uint64_t kInBlock = 0x3ffff;  // in a cluster the bits above say whose memory it is
  return (address & kInBlock) >> 4 | (static_cast<uint64_t>(line_group_bytes) >> 4) << 16 | (kAtomBytes >> 4) << 32 |
         kSwizzle128 << 62;
}

/// Before the first wgmma that reads registers which other instructions have written.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
/// Makes one group of all wgmma since the last group.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
/// Waits until at most kPending groups are unfinished.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving uses of sums across this point: it does not know that wgmma runs on after its issue.
template <int kRows, int kSize>
__device__ inline void hold_sums(float (&d)[kRows][kSize]) {
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(d[row][i])::"memory");
  }
}

/// d [64, kN] (+)= a [64, 16] · b [16, kN]. Thread t of the warpgroup, lane l of its warp w, holds of row
/// 16 w + l / 4 + 8 i, columns 8 j + 2 (l % 4) and the next, in d[4 j + 2 i] and d[4 j + 2 i + 1].
template <int kN, bool kAColumns, bool kBColumns>
struct Wgmma;

#define HONE_SUMS_8(i)                                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])

template <bool kAColumns, bool kBColumns>
struct Wgmma<128, kAColumns, kBColumns> {
  template <int kSize>
  static __device__ void add(float (&d)[kSize], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20,"
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39,"
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58,"
        "%59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, %67, %68;\n"
        "}\n"
        : HONE_SUMS_8(0), HONE_SUMS_8(8), HONE_SUMS_8(16), HONE_SUMS_8(24), HONE_SUMS_8(32), HONE_SUMS_8(40),
          HONE_SUMS_8(48), HONE_SUMS_8(56)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kAColumns)),
          "n"(static_cast<int>(kBColumns)));
  }
};

template <bool kAColumns, bool kBColumns>
struct Wgmma<192, kAColumns, kBColumns> {
  template <int kSize>
  static __device__ void add(float (&d)[kSize], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20,"
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39,"
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58,"
        "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77,"
        "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, p, 1, 1, %99, %100;\n"
        "}\n"
        : HONE_SUMS_8(0), HONE_SUMS_8(8), HONE_SUMS_8(16), HONE_SUMS_8(24), HONE_SUMS_8(32), HONE_SUMS_8(40),
          HONE_SUMS_8(48), HONE_SUMS_8(56), HONE_SUMS_8(64), HONE_SUMS_8(72), HONE_SUMS_8(80), HONE_SUMS_8(88)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kAColumns)),
          "n"(static_cast<int>(kBColumns)));
  }
};

#undef HONE_SUMS_8

}  // namespace hone::cuda::sm90
