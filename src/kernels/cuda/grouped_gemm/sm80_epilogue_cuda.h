// Stores accumulators of tier sm80 to device memory: rounded, and exchanged among the four lanes of a row, so that each
// lane writes 16 bytes and a warp whole sectors. Included by *_cuda.cu only.
#pragma once

#include "kernels/cuda/sm80/product_cuda.h"

namespace hone::cuda::sm80 {

/// Columns of a row that its four lanes hold in four accumulator tiles: 16 bytes of bfloat16 each.
constexpr int kQuadColumns = 32;

/// Rounds the pairs of tiles [first, first + 4) of a row (half 0, or half 1: 8 rows below).
template <int kN>
__device__ inline void round_row(uint32_t (&packed)[4], const float (&sums)[kN][4], int first, int half) {
#pragma unroll
  for (int j = 0; j < 4; ++j) packed[j] = pack_bf16(sums[first + j][2 * half], sums[first + j][2 * half + 1]);
}

/// The first of the lane's 8 columns in a quad's 32.
__device__ inline int quad_column() { return lane_of_warp() % 4 * 8; }

/// Writes a row's 32 columns to `to`; the lane's 8 columns exist either all or not at all.
__device__ inline void store_quad(__nv_bfloat16* to, uint32_t (&packed)[4], bool exists) {
  transpose_quad(packed);
  if (exists) *reinterpret_cast<uint4*>(to + quad_column()) = {packed[0], packed[1], packed[2], packed[3]};
}
/// Loads a row's 32 columns, zeros if they do not exist. The lane gets 8 consecutive elements; transpose_quad converts
/// them to pairs in the accumulators' layout.
__device__ inline void load_quad(uint32_t (&packed)[4], const __nv_bfloat16* from, bool exists) {
  uint4 v = {};
  if (exists) v = *reinterpret_cast<const uint4*>(from + quad_column());
  packed[0] = v.x, packed[1] = v.y, packed[2] = v.z, packed[3] = v.w;
}

}  // namespace hone::cuda::sm80
