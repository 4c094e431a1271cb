// Rows of a bfloat16 weight that a warp reads once, from device memory straight into the fragments of mma.m16n8k16, to
// multiply them with few rows of activations. Four lanes have a row: a lane's 16 bytes are 8 adjacent k, which two
// products take as their k = 2 q, 2 q + 1, 2 q + 8, 2 q + 9 (q: lane % 4); rows of activations are read in the same
// order. Included by *_cuda.cu only.
#pragma once

#include "kernels/cuda/ptx_cuda.h"

namespace hone::cuda {

namespace weight_rows {

constexpr int kWarpRows = 16;   ///< of w
constexpr int kChunk = 32;      ///< of k: 64 bytes of a row
constexpr int kStepChunks = 2;  ///< chunks of a step
constexpr int kStep = kChunk * kStepChunks;
constexpr int kTileRows = 8;  ///< rows of a that a product has as its n

/// Bytes from a row to the next in shared memory: lanes of two rows that are read together use all banks.
__host__ __device__ constexpr int staged_pitch(int k) { return 2 * k + (k % 64 == 32 ? 0 : 64); }

/// 16 bytes of a weight, which no other CTA reads; zeros if !valid.
__device__ inline uint4 load_weight(const __nv_bfloat16* from, bool valid) {
  uint4 value;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %5, 0;\n"
      "mov.b32 %0, 0;\n"
      "mov.b32 %1, 0;\n"
      "mov.b32 %2, 0;\n"
      "mov.b32 %3, 0;\n"
      "@p ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}\n"
      : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
      : "l"(from), "r"(static_cast<int>(valid)));
  return value;
}

/// The 16 rows of w of a warp: this lane's part of rows `upper` and `lower`.
struct WeightRows {
  const __nv_bfloat16 *upper, *lower;
};

struct WeightStep {
  uint4 upper[kStepChunks], lower[kStepChunks];

  __device__ void load(const WeightRows& rows, int step, bool exists) {
#pragma unroll
    for (int chunk = 0; chunk < kStepChunks; ++chunk) {
      upper[chunk] = load_weight(rows.upper + step * kStep + chunk * kChunk, exists);
      lower[chunk] = load_weight(rows.lower + step * kStep + chunk * kChunk, exists);
    }
  }
};

/// Sums of the 16 rows of w with kTiles tiles of rows of a, as mma.m16n8k16 has them; `from(tile)` is where this lane
/// reads its row (lane / 4) of the tile: at 8 (lane % 4) of k.
template <int kTiles>
struct WarpProduct {
  float sums[kTiles][4] = {};

  template <class From>
  __device__ void multiply(const WeightStep& w, int step, const From& from) {
#pragma unroll
    for (int chunk = 0; chunk < kStepChunks; ++chunk) {
      const uint4 &upper = w.upper[chunk], &lower = w.lower[chunk];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 row = *reinterpret_cast<const uint4*>(from(tile) + step * kStep + chunk * kChunk);
        mma_m16n8k16(sums[tile], upper.x, lower.x, upper.y, lower.y, row.x, row.y);
        mma_m16n8k16(sums[tile], upper.z, lower.z, upper.w, lower.w, row.z, row.w);
      }
    }
  }
};

}  // namespace weight_rows

}  // namespace hone::cuda
