// wgmma: matrix products of a Hopper warpgroup (128 threads). Operands are bfloat16, B in shared memory, A in shared
// memory or registers; accumulators are float32 in registers. Included by *_cuda.cu only; compiles for sm_90a only.
//
// An operand is stored in lines of 128 bytes (64 elements), 8 of which make an atom of 1024 bytes (aligned to that);
// within an atom the 16-byte unit u of line l is stored at unit u ^ l: the 128-byte swizzle, as TMA writes it. K-major
// ("rows" in names): a line is 64 elements of k for one row of A (or one column n of B). MN-major ("columns"): a line
// is 64 rows of A (or 64 columns n of B) for one k.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/ptx_cuda.h"

namespace hone::cuda::sm90 {

/// The shared-memory descriptor of an operand. A step of 16 along k advances the address by 32 bytes if K-major, by
/// 2048 bytes if MN-major. `line_group_bytes` is the distance from 64 rows of A (columns of B) to the next 64; MN-major
/// only.
__device__ constexpr uint64_t wgmma_factor(uint32_t address, uint32_t line_group_bytes) {
  constexpr uint64_t kAtomBytes = 1024, kSwizzle128 = 1;
  constexpr uint64_t kInBlock = 0x3ffff;  // in a cluster the higher bits select the CTA
  return (address & kInBlock) >> 4 | (static_cast<uint64_t>(line_group_bytes) >> 4) << 16 | (kAtomBytes >> 4) << 32 |
         kSwizzle128 << 62;
}

/// The descriptor `units` of 16 bytes further on. The halves are apart, so that ptxas sums 32 bits, in uniform
/// registers where the address is uniform, and knows the upper half: as sums of 64 bits, those of 8 products were 90
/// instructions.
__device__ constexpr uint64_t advance(uint64_t factor, uint32_t units) {
  return factor >> 32 << 32 | (static_cast<uint32_t>(factor) + units);
}

/// Required before the first wgmma that reads registers written by other instructions.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
/// Commits all wgmma since the last commit as a group.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
/// Waits until at most kPending groups are unfinished.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving uses of accumulators across this point: it does not know that wgmma is asynchronous.
template <int kSize>
__device__ inline void hold(float (&d)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kRows, int kSize>
__device__ inline void hold(float (&d)[kRows][kSize]) {
#pragma unroll
  for (int row = 0; row < kRows; ++row) hold(d[row]);
}

// -- The product of one instruction: d [64, n] (+)= a [64, 16] · b [16, n]. A thread's accumulators are d[4 j + 2 i +
// x]: row sums_row() + 8 i, column 8 j + sums_column() + x, i, x < 2; an array may be larger than the n / 2 of the
// product.

__device__ inline int sums_row() {
  return static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
}
__device__ inline int sums_column() { return 2 * (static_cast<int>(threadIdx.x) % 4); }

/// Packs accumulators [64, 2 n] of a warpgroup as operand A in registers for n / 8 products over 16 of k: the layouts
/// agree.
template <int kSums>
__device__ inline void pack_sums(uint32_t (&packed)[kSums / 2], const float (&sums)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums / 2; ++i) packed[i] = pack_bf16(sums[2 * i], sums[2 * i + 1]);
}

/// Both operands in shared memory, described by wgmma_factor.
template <int kN, bool kAColumns, bool kBColumns>
struct Wgmma;

/// Operand A in registers, packed by pack_sums.
template <int kN, bool kBColumns>
struct RegisterWgmma;

#define HONE_SUMS_8(i)                                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define HONE_SUMS_32(i) HONE_SUMS_8(i), HONE_SUMS_8(i + 8), HONE_SUMS_8(i + 16), HONE_SUMS_8(i + 24)
#define HONE_NAMES_32                                                                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define HONE_NAMES_64                                                                                           \
  HONE_NAMES_32                                                                                                 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define HONE_NAMES_96                                                                                           \
  HONE_NAMES_64                                                                                                 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, " \
  "%85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define HONE_NAMES_128                                                                                               \
  HONE_NAMES_96                                                                                                      \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, " \
  "%115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

template <bool kAColumns, bool kBColumns>
struct Wgmma<32, kAColumns, kBColumns> {
  template <int kSize>
  static __device__ void add(float (&d)[kSize], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
        "%13, %14, %15}, "
        "%16, %17, p, 1, 1, %19, %20;\n"
        "}\n"
        : HONE_SUMS_8(0), HONE_SUMS_8(8)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kAColumns)),
          "n"(static_cast<int>(kBColumns)));
  }
};

template <bool kAColumns, bool kBColumns>
struct Wgmma<64, kAColumns, kBColumns> {
  template <int kSize>
  static __device__ void add(float (&d)[kSize], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" HONE_NAMES_32
        "}, "
        "%32, %33, p, 1, 1, %35, %36;\n"
        "}\n"
        : HONE_SUMS_32(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kAColumns)),
          "n"(static_cast<int>(kBColumns)));
  }
};

template <bool kAColumns, bool kBColumns>
struct Wgmma<128, kAColumns, kBColumns> {
  template <int kSize>
  static __device__ void add(float (&d)[kSize], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" HONE_NAMES_64
        "}, "
        "%64, %65, p, 1, 1, %67, %68;\n"
        "}\n"
        : HONE_SUMS_32(0), HONE_SUMS_32(32)
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
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" HONE_NAMES_96
        "}, "
        "%96, %97, p, 1, 1, %99, %100;\n"
        "}\n"
        : HONE_SUMS_32(0), HONE_SUMS_32(32), HONE_SUMS_32(64)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kAColumns)),
          "n"(static_cast<int>(kBColumns)));
  }
};

template <bool kAColumns, bool kBColumns>
struct Wgmma<256, kAColumns, kBColumns> {
  template <int kSize>
  static __device__ void add(float (&d)[kSize], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" HONE_NAMES_128
        "}, "
        "%128, %129, p, 1, 1, %131, %132;\n"
        "}\n"
        : HONE_SUMS_32(0), HONE_SUMS_32(32), HONE_SUMS_32(64), HONE_SUMS_32(96)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kAColumns)),
          "n"(static_cast<int>(kBColumns)));
  }
};

/// d [64, n] (+)= a [64, 32] · b [32, n] of e4m3, both operands K-major in shared memory, in lines of 128 codes: a step
/// of 32 along k advances the address by 32 bytes, as 16 of bfloat16 do. Sums keep some 14 bits while they stay in the
/// tensor cores.
template <int kN>
struct Fp8Wgmma;

template <>
struct Fp8Wgmma<128> {
  template <int kSize>
  static __device__ void add(float (&d)[kSize], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" HONE_NAMES_64
        "}, "
        "%64, %65, p, 1, 1;\n"
        "}\n"
        : HONE_SUMS_32(0), HONE_SUMS_32(32)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }
};

template <>
struct Fp8Wgmma<192> {
  template <int kSize>
  static __device__ void add(float (&d)[kSize], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 {" HONE_NAMES_96
        "}, "
        "%96, %97, p, 1, 1;\n"
        "}\n"
        : HONE_SUMS_32(0), HONE_SUMS_32(32), HONE_SUMS_32(64)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }
};

template <bool kBColumns>
struct RegisterWgmma<64, kBColumns> {
  template <int kSize>
  static __device__ void add(float (&d)[kSize], const uint32_t* a, uint64_t b, bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" HONE_NAMES_32
        "}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n"
        "}\n"
        : HONE_SUMS_32(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
          "n"(static_cast<int>(kBColumns)));
  }
};

template <bool kBColumns>
struct RegisterWgmma<128, kBColumns> {
  template <int kSize>
  static __device__ void add(float (&d)[kSize], const uint32_t* a, uint64_t b, bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" HONE_NAMES_64
        "}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n"
        "}\n"
        : HONE_SUMS_32(0), HONE_SUMS_32(32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
          "n"(static_cast<int>(kBColumns)));
  }
};

template <bool kBColumns>
struct RegisterWgmma<192, kBColumns> {
  template <int kSize>
  static __device__ void add(float (&d)[kSize], const uint32_t* a, uint64_t b, bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %101, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" HONE_NAMES_96
        "}, "
        "{%96, %97, %98, %99}, %100, p, 1, 1, %102;\n"
        "}\n"
        : HONE_SUMS_32(0), HONE_SUMS_32(32), HONE_SUMS_32(64)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
          "n"(static_cast<int>(kBColumns)));
  }
};

template <bool kBColumns>
struct RegisterWgmma<256, kBColumns> {
  template <int kSize>
  static __device__ void add(float (&d)[kSize], const uint32_t* a, uint64_t b, bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %133, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" HONE_NAMES_128
        "}, "
        "{%128, %129, %130, %131}, %132, p, 1, 1, %134;\n"
        "}\n"
        : HONE_SUMS_32(0), HONE_SUMS_32(32), HONE_SUMS_32(64), HONE_SUMS_32(96)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
          "n"(static_cast<int>(kBColumns)));
  }
};

#undef HONE_SUMS_8
#undef HONE_SUMS_32
#undef HONE_NAMES_32
#undef HONE_NAMES_64
#undef HONE_NAMES_96
#undef HONE_NAMES_128

/// d [64, n] (+)= a · b, both K-major in shared memory.
template <int kSums>
__device__ inline void multiply_rows(float (&d)[kSums], uint64_t a, uint64_t b, bool accumulate) {
  Wgmma<2 * kSums, false, false>::add(d, a, b, accumulate);
}
/// d [64, n] += a · b, a in registers packed by pack_sums, b MN-major in shared memory.
template <int kSums>
__device__ inline void add_columns(float (&d)[kSums], const uint32_t* a, uint64_t b) {
  RegisterWgmma<2 * kSums, true>::add(d, a, b, true);
}

}  // namespace hone::cuda::sm90
