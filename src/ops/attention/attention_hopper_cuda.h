// The gradients of attention on Hopper's tensor cores: what their kernels share. Included by *_cuda.cu only.
//
// dk and dv come from one kernel, dq from another that forms the scores and their gradients again: 7 products instead
// of the 5 of a kernel that adds its part of dq to memory from every block of keys. In return each sum has one owner:
// the results are the same bits in every run, and no float32 copy of dq (nor of dk and dv for every query head) is
// kept.
#pragma once

#include "ops/attention/attention.h"
#include "ops/attention/attention_gradient_cuda.h"
#include "ops/hopper/tma_cuda.h"
#include "ops/hopper/wgmma_cuda.h"

namespace hone::cuda::sm90 {

/// Rows of a tile that belongs to one block: keys of dk and dv, queries of dq. Two warpgroups have half of them each.
inline constexpr int kHopperRows = 128;
/// Statistics of queries are padded to multiples of this in each document.
inline constexpr int kStatsRows = 64;

/// A tile of kHopperRows rows of one document.
struct HopperTile {
  int32_t begin;   ///< first row of the document
  int32_t length;  ///< rows of the document
  int32_t first;   ///< first row of the tile, counted from `begin`; not below `length`: an empty tile
  int32_t stats;   ///< where the document's statistics begin
};

/// Of one query and head.
struct alignas(8) HopperStats {
  float lse;    ///< lse · log2 e; infinity beyond the end of a document, so that its probabilities are 0
  float delta;  ///< dout · out
};

/// Scratch of the kernels below.
struct HopperScratch {
  Tensor stats;        ///< [Hq, stats_rows, 2] float32
  Tensor unsorted;     ///< [tiles, 4] int32
  Tensor key_tiles;    ///< [tiles, 4] int32: those with most queries to go through first
  Tensor query_tiles;  ///< [tiles, 4] int32: those with most keys first
  Tensor counters;     ///< [2] int32: items that blocks have taken, of dk and dv and of dq
  int64_t stats_rows = 0, tiles = 0;

  HopperScratch(ArenaScope& memory, const AttentionArgs& args);
};

/// Whether the kernels serve these arguments.
bool hopper_attention_backward_serves(const Context& context, const AttentionArgs& args);

void prepare_hopper_backward(const Context& context, const AttentionBackwardArgs& args, LseStrides strides,
                             const HopperScratch& scratch);
void hopper_dk_dv(const Context& context, const AttentionBackwardArgs& args, const HopperScratch& scratch);
void hopper_dq(const Context& context, const AttentionBackwardArgs& args, const HopperScratch& scratch);

/// Boxes of 64 elements of one head by `box_rows` rows of a [rows, heads · dim] tensor. Coordinates of copy_box:
/// element of the head, head, row.
inline CUtensorMap head_map(const Tensor& tensor, int64_t heads, int64_t dim, int box_rows) {
  return tensor_map(tensor, {dim, heads, tensor.shape[0]}, {dim, heads * dim}, {1, box_rows});
}

/// Arguments of both kernels.
struct HopperBackward {
  const HopperTile* tiles;  ///< sorted
  int num_tiles;
  int* counter;
  const HopperStats* stats;  ///< [Hq, stats_rows]
  int64_t stats_rows;
  int num_heads, num_kv_heads, head_dim;
  float scale;
  int window;  ///< 0: none
  Gradient dq, dk, dv;

  HopperBackward(const AttentionBackwardArgs& args, const HopperScratch& scratch, const Tensor& sorted_tiles,
                 int counter_index);
};

#ifdef __CUDACC__

constexpr uint32_t kMultiplyingWarps = 8;
constexpr int kHopperThreads = 384;  // two warpgroups multiply, the third loads
// Together what a block has at its start: 384 times 168, the most that leaves room for it. More would be waited for
// forever.
constexpr int kMultiplyRegisters = 240, kLoadRegisters = 24;
static_assert(2 * kMultiplyRegisters + kLoadRegisters == 3 * 168);

/// Tiles and heads of the persistent blocks: a block takes the next one of the sorted list when it is through with its
/// last, so that all end at about the same time. Who computes a tile does not change its bits.
struct HopperItems {
  const HopperTile* tiles;
  int heads, count;
  int* counter;

  /// One thread of the block: the next item, or -1 if none is left.
  __device__ int take() const {
    const int item = atomicAdd(counter, 1);
    return item < count && tiles[item / heads].first < tiles[item / heads].length ? item : -1;
  }
  __device__ HopperTile tile(int item) const { return tiles[item / heads]; }
  __device__ int head(int item) const { return item % heads; }
};

__device__ inline float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// Writes sums times `factor` as rows of a gradient [rows, heads · head_dim], the first of them `first_row` of the
/// tile's document; nothing beyond that.
template <int kSums>
__device__ inline void store_sums(const Gradient& gradient, const float (&sums)[kSums], float factor,
                                  const HopperTile& tile, int first_row, int head, int heads, int head_dim) {
  if (gradient.data == nullptr) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + sums_row() + 8 * i;
    if (row >= tile.length) continue;
    const int64_t begin = (static_cast<int64_t>(tile.begin + row) * heads + head) * head_dim;
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      const int element = 8 * j + sums_column();
      if (element >= head_dim) continue;
      gradient.store_pair(begin + element, factor * sums[4 * j + 2 * i], factor * sums[4 * j + 2 * i + 1]);
    }
  }
}

/// A tile of `kRows` rows of one head: boxes of 64 elements, one behind the other.
template <int kDim, int kRows>
struct HopperOperand {
  static constexpr int kBoxBytes = kRows * 128, kBytes = kDim / 64 * kBoxBytes;

  uint32_t address;

  /// One thread: copies it from row `row` of head `head` on.
  __device__ void load(const CUtensorMap& map, int head, int row, uint32_t barrier) const {
#pragma unroll
    for (int box = 0; box < kDim / 64; ++box) copy_box(map, 64 * box, head, row, address + box * kBoxBytes, barrier);
  }
  /// As a factor by rows, from row `row` on: elements [16 step, 16 step + 16) of the head.
  __device__ uint64_t rows(int row, int step) const {
    return wgmma_factor(address + row * 128, 0) + static_cast<uint64_t>((step / 4 * kBoxBytes + step % 4 * 32) / 16);
  }
  /// As a second factor by columns: rows [16 step, 16 step + 16), all elements of the head.
  __device__ uint64_t columns(int step) const {
    return wgmma_factor(address, kBoxBytes) + static_cast<uint64_t>(step * 2048 / 16);
  }
};

/// d (+)= a bᵀ over a head: a's 64 rows from `row` on against all rows of b.
template <int kDim, int kSums, class A, class B>
__device__ inline void multiply_heads(float (&d)[kSums], const A& a, int row, const B& b) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) multiply_rows(d, a.rows(row, step), b.rows(0, step), step > 0);
}

#endif  // __CUDACC__

}  // namespace hone::cuda::sm90
