// Stages a warp's accumulators through its strip of shared memory, an epilogue staging buffer, 16 rows by 32 columns at
// a time, so that threads read and write 16 bytes of a row. Included by *_cuda.cu only.
#pragma once

#include "core/stream/cuda_launch.h"
#include "kernels/cuda/sm90/tma_cuda.h"
#include "kernels/cuda/sm90/wgmma_cuda.h"

namespace hone::cuda::sm90 {

constexpr int kStripRows = 16, kStripColumns = 32;
constexpr uint32_t kStripPartBytes = kStripRows * kStripColumns * 2;

/// Packed pairs of bfloat16 in the layout of ldmatrix and stmatrix (kernels/cuda/sm90/tma_cuda.h): matrices [0, 4) are
/// columns [0, 16), rows [0, 8) then [8, 16) of columns [0, 8), and so on.
struct StripFragment {
  uint32_t pairs[2][4];
};

/// Address of 16-byte unit u of row r: one unit of 8 rows, and the 4 units of 2 rows, are in different banks.
__device__ inline uint32_t strip_unit(uint32_t strip, int row, int unit) {
  return strip + static_cast<uint32_t>(row * 64 + ((unit ^ (row / 2 % 4)) * 16));
}

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % 32; }

/// Registers to shared memory and back, 16 columns at a time; the caller calls __syncwarp between writes and reads.
__device__ inline void put_half(uint32_t strip, int half, const uint32_t (&pairs)[4]) {
  stmatrix_x4(strip_unit(strip, lane_index() % 16, lane_index() / 16 + 2 * half), pairs);
}
__device__ inline void get_half(uint32_t strip, int half, uint32_t (&pairs)[4]) {
  ldmatrix_x4(pairs, strip_unit(strip, lane_index() % 16, lane_index() / 16 + 2 * half));
}
__device__ inline void put_fragment(uint32_t strip, const StripFragment& fragment) {
  put_half(strip, 0, fragment.pairs[0]);
  put_half(strip, 1, fragment.pairs[1]);
}

/// 16 rows by 32 columns of a matrix in device memory, of which `rows` by `columns` (a multiple of 8) are inside.
struct StripTarget {
  __nv_bfloat16* first;
  int64_t row_stride;
  int rows, columns;
};

struct StripSource {
  const __nv_bfloat16* first;
  int64_t row_stride;
  int rows, columns;
};

__device__ inline void strip_to_memory(uint32_t strip, const StripTarget& target) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = i * 8 + lane_index() / 4, unit = lane_index() % 4;
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(strip_unit(strip, row, unit))
                 : "memory");
    if (row < target.rows && unit * 8 < target.columns) {
      // A single instruction, which the compiler would sometimes split. The result is not read soon (cs).
      asm volatile(
          "st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"l"(target.first + row * target.row_stride + unit * 8),
          "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
          : "memory");
    }
  }
}
/// Loads zeros outside of the matrix.
__device__ inline void load_strip(const StripSource& source, uint4 (&values)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = i * 8 + lane_index() / 4, unit = lane_index() % 4;
    values[i] = {};
    if (row < source.rows && unit * 8 < source.columns) {
      asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                   : "=r"(values[i].x), "=r"(values[i].y), "=r"(values[i].z), "=r"(values[i].w)
                   : "l"(source.first + row * source.row_stride + unit * 8)
                   : "memory");
    }
  }
}
__device__ inline void put_strip(uint32_t strip, const uint4 (&values)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = i * 8 + lane_index() / 4, unit = lane_index() % 4;
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(strip_unit(strip, row, unit)), "r"(values[i].x),
                 "r"(values[i].y), "r"(values[i].z), "r"(values[i].w)
                 : "memory");
  }
}

/// Factors of the sums of a thread's two rows in a block: 1, or their own.
struct OneScale {
  __device__ float times(float sum, int) const { return sum; }
};
struct RowScales {
  float rows[2];
  __device__ float times(float sum, int row) const { return sum * rows[row]; }
};

/// Accumulators [16 part, 16 part + 16) of a thread, which are columns [32 part, 32 part + 32) of its warp, times the
/// scales of their rows, rounded.
template <int kSize, class Scales>
__device__ inline StripFragment round_sums(const float (&sums)[kSize], int part, const Scales& scales) {
  StripFragment fragment;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int sum = 16 * part + 2 * i;
    fragment.pairs[i / 4][i % 4] = pack_bf16(scales.times(sums[sum], i % 2), scales.times(sums[sum + 1], i % 2));
  }
  return fragment;
}

}  // namespace hone::cuda::sm90
