// MMA operands in shared memory for mma.sync.m16n8k16: the swizzle of their 16-byte units, and the fragments that
// ldmatrix loads. Included by *_cuda.cu only.
//
// An operand is K-major (a line holds the elements of one row along k) or MN-major (a line holds the rows of one k).
// Swizzle: the units of a line are permuted by the line's index, so that one unit of 8 lines (an 8 x 8 matrix of
// ldmatrix) and the units of one line (written by cp.async) are in different banks, without padding.
#pragma once

#include "kernels/cuda/ptx_cuda.h"

namespace hone::cuda::sm80 {

/// kLines lines of kWidth bfloat16; kWidth is 32 or a multiple of 64. The address is aligned to 128 bytes.
template <int kLines, int kWidth>
struct SharedLines {
  static_assert(kWidth == 32 || kWidth % 64 == 0);
  static constexpr int kUnits = kWidth / 8;  // 16-byte units of a line
  static constexpr int kBytes = kLines * kWidth * 2;

  uint32_t address;

  __device__ static int permutation(int line) { return kUnits == 4 ? line / 2 % 4 : line % 8; }
  __device__ uint32_t unit(int line, int unit) const {
    return address + static_cast<uint32_t>(line * kWidth * 2 + ((unit ^ permutation(line)) * 16));
  }
};

/// Four registers as loaded by ldmatrix.x4.
using Fragment = uint32_t[4];

__device__ inline int lane_of_warp() { return static_cast<int>(threadIdx.x) % 32; }
/// A thread's row in the accumulators' first half (the second is 8 rows below), and the first of its two columns.
__device__ inline int accumulator_row() { return lane_of_warp() / 4; }
__device__ inline int accumulator_column() { return lane_of_warp() % 4 * 2; }

/// Loads fragments of operand A (16 rows by 16 of k) or of operand B (two n-tiles: 16 columns by 16 of k; registers b0,
/// b1 of the first tile, then of the second). Lane l provides the address of row l % 8 of matrix l / 8 for ldmatrix;
/// the lane's part of the address is computed once.
template <class Lines, bool kMnMajor, bool kIsA>
class FragmentReader {
 public:
  /// mn: the warp's first row or column, a multiple of 16. If MN-major, mn or all steps are multiples of 64, or the
  /// steps stay within the 64 elements of mn.
  __device__ FragmentReader(const Lines& lines, int mn) {
    const int lane = lane_of_warp(), low = lane % 8, second = lane / 8 % 2, upper = lane / 16;
    // Matrices 0 to 3 of A: rows 0-7, 8-15 of k 0-7, then of k 8-15; of B: k 0-7, 8-15 of columns 0-7, then of 8-15.
    const int mn_half = kIsA ? second : upper, k_half = kIsA ? upper : second;
    base_ = kMnMajor ? lines.unit(low + 8 * k_half, mn / 8 + mn_half) : lines.unit(mn + low + 8 * mn_half, k_half);
  }

  /// Loads rows or columns [16 step, 16 step + 16) from mn on, and k [16 k16, 16 k16 + 16). `offset` shifts the whole
  /// operand by a multiple of the swizzle's period (1024 bytes).
  __device__ void read(Fragment& fragment, int step, int k16, uint32_t offset = 0) const {
    constexpr uint32_t kLine = Lines::kUnits * 16;
    if constexpr (kMnMajor) {
      // A step along mn moves two units: within 64 elements that is an XOR, beyond them an offset.
      const uint32_t from = (base_ ^ static_cast<uint32_t>(step % 4 * 32)) + offset;
      ldmatrix_x4_trans(fragment,
                        from + static_cast<uint32_t>(k16) * 16 * kLine + static_cast<uint32_t>(step / 4) * 128);
    } else {
      constexpr int kPeriod = Lines::kUnits == 4 ? 2 : 4;
      const uint32_t from = (base_ ^ static_cast<uint32_t>(k16 % kPeriod * 32)) + offset;
      ldmatrix_x4(fragment,
                  from + static_cast<uint32_t>(step) * 16 * kLine + static_cast<uint32_t>(k16 / kPeriod) * 128);
    }
  }

 private:
  uint32_t base_;
};

/// Accumulators of kM x 16 rows by kN x 8 columns of a warp: registers 0, 1 are two adjacent columns of row
/// accumulator_row(), 2, 3 of the row 8 below.
template <int kM, int kN>
using Accumulators = float[kM][kN][4];

template <int kM, int kN>
__device__ inline void clear(Accumulators<kM, kN>& d) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
#pragma unroll
      for (int x = 0; x < 4; ++x) d[i][j][x] = 0.0f;
    }
  }
}

/// d += a b for one step of 16 along k.
template <int kM, int kN>
__device__ inline void multiply(Accumulators<kM, kN>& d, const Fragment (&a)[kM], const Fragment (&b)[kN / 2]) {
#pragma unroll
  for (int j = 0; j < kN; ++j) {
#pragma unroll
    for (int i = 0; i < kM; ++i) mma_m16n8k16(d[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
  }
}

}  // namespace hone::cuda::sm80
