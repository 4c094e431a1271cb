// Shared by attention's forward and backward kernels on Hopper. Included by *_cuda.cu only.
//
// Backward computes the scores and their gradients once, for five matrix products. A CTA owns the dk and dv of its
// keys; dq is a sum over CTAs, which add in a fixed order, so results are bitwise reproducible.
#pragma once

#include "kernels/cuda/sm90/tma_cuda.h"
#include "kernels/cuda/sm90/wgmma_cuda.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_gradient_cuda.h"
#include "ops/attention/attention_tiles_cuda.h"
#include "ops/attention/cached_keys_cuda.h"

namespace hone::cuda::sm90 {

/// Whether device, dtype and counts are supported; each kernel also checks head sizes.
bool hopper_attention_may_serve(const Context& context, const AttentionArgs& args);

// -- Forward: forward_cuda.cu

bool hopper_attention_serves(const Context& context, const AttentionArgs& args);

/// Writes lse as [Hq, T]. With a cache, rows of v that follow a document's last one in its page are finite, and
/// documents of one row are left out.
void hopper_attention(const Context& context, const AttentionArgs& args, const AttentionTiles& tiles,
                      const CachedKeys& cached = {});

/// Arguments of the kernel.
struct HopperForward {
  TileOrder order;
  int64_t tokens;
  int num_heads, num_kv_heads, v_head_dim;
  float scale;
  int window;  ///< 0: none
  __nv_bfloat16* out;
  float* lse;  ///< [Hq, T]
  CachedKeys cached;
};

// -- Backward: backward_cuda.cu

/// Head sizes that the kernels are compiled for, the queries of a step, and the CTAs that share a tile of keys and add
/// to parts of dq of their own.
struct HopperSizes {
  int64_t head_dim, v_head_dim;
  int queries, ctas;
};
inline constexpr HopperSizes kHopperSizes[] = {
    {64, 64, 128, 1}, {128, 128, 64, 1}, {192, 128, 64, 1}, {256, 256, 64, 2}};

/// The smallest sizes that fit these heads, or null.
constexpr const HopperSizes* hopper_sizes(int64_t head_dim, int64_t v_head_dim) {
  for (const HopperSizes& sizes : kHopperSizes) {
    if (head_dim <= sizes.head_dim && v_head_dim <= sizes.v_head_dim) return &sizes;
  }
  return nullptr;
}

/// Scratch of the kernels below.
struct HopperScratch {
  AttentionTiles tiles;
  QueryStats stats;
  Tensor turns;       ///< [CTAs, Hq, query_blocks] int32: number of key tiles that have added to a block's dq
  Tensor partial_dq;  ///< [Hq, query_blocks, rows of a block, head_dim padded] float32, in the accumulators' layout
  int64_t query_blocks = 0;

  HopperScratch(ArenaScope& memory, const AttentionArgs& args);
};

/// Whether the kernels support these arguments.
bool hopper_attention_backward_serves(const Context& context, const AttentionArgs& args);

void prepare_hopper_backward(const Context& context, const AttentionBackwardArgs& args, const HopperScratch& scratch);
void hopper_backward(const Context& context, const AttentionBackwardArgs& args, const HopperScratch& scratch);

/// Boxes of 64 elements of one head by `box_rows` rows of a [rows, heads · dim] tensor. Coordinates of copy_box:
/// element of the head, head, row.
inline CUtensorMap head_map(const Tensor& tensor, int64_t heads, int64_t dim, int box_rows) {
  return tensor_map(tensor, {dim, heads, tensor.shape[0]}, {dim, heads * dim}, {1, box_rows});
}

/// Arguments of the kernel.
struct HopperBackward {
  TileOrder order;
  const float *shifts, *deltas;  ///< [Hq, stats_rows]
  int64_t stats_rows;
  int* turns;         ///< [CTAs, Hq, query_blocks]
  float* partial_dq;  ///< [Hq, query_blocks, …]
  int64_t query_blocks;
  int num_heads, num_kv_heads, head_dim, v_head_dim;
  float scale;
  int window;  ///< 0: none
  Gradient dq, dk, dv;

  HopperBackward(const AttentionBackwardArgs& args, const HopperScratch& scratch, const TileOrder& order);
};

#ifdef __CUDACC__

constexpr uint32_t kMultiplyingWarps = 8;
constexpr int kHopperThreads = 384;  // two consumer warpgroups and one producer
// Their sum must equal the 384 x 168 registers of a CTA at launch: otherwise setmaxnreg would wait forever.
constexpr int kMultiplyRegisters = 240, kLoadRegisters = 24;
static_assert(2 * kMultiplyRegisters + kLoadRegisters == 3 * 168);

/// Writes accumulators times `factor` as rows of a gradient [rows, heads · head_dim], starting at row `first_row` of
/// the tile's document and element `first_element` of the head; skips elements beyond document and head.
template <int kSums>
__device__ inline void store_sums(const Gradient& gradient, const float (&sums)[kSums], float factor,
                                  const AttentionTile& tile, int first_row, int head, int heads, int head_dim,
                                  int first_element = 0) {
  if (gradient.data == nullptr) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + sums_row() + 8 * i;
    if (row >= tile.length) continue;
    const int64_t begin = (static_cast<int64_t>(tile.begin + row) * heads + head) * head_dim;
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      const int element = first_element + 8 * j + sums_column();
      if (element >= head_dim) continue;
      gradient.store_pair(begin + element, factor * sums[4 * j + 2 * i], factor * sums[4 * j + 2 * i + 1]);
    }
  }
}

/// A CTA's dynamic shared memory, aligned to 1024, for which its size has 1024 bytes more.
struct HopperMemory {
  char* memory;
  uint32_t begin;  ///< its address

  __device__ explicit HopperMemory(char* dynamic) {
    const uint32_t address = shared_address(dynamic), padding = (1024 - address % 1024) % 1024;
    memory = dynamic + padding;
    begin = address + padding;
  }
};

/// A tile of `kRows` rows of one head: consecutive boxes of 64 elements. kHalves: descriptors are summed by advance().
/// Forward is 2 to 4 % faster so; backward by keys, which has no registers left, 2.5 % slower, and by pairs equal.
template <int kDim, int kRows, bool kHalves = false>
struct HopperOperand {
  static constexpr int kBoxBytes = kRows * 128, kBytes = kDim / 64 * kBoxBytes;

  uint32_t address;

  /// Called by one thread: copies the tile from row `row` of head `head` on, elements from `element` on.
  __device__ void load(const CUtensorMap& map, int head, int row, uint32_t barrier, int element = 0) const {
#pragma unroll
    for (int box = 0; box < kDim / 64; ++box) {
      copy_box(map, 64 * box + element, head, row, address + box * kBoxBytes, barrier);
    }
  }
  /// As a K-major operand from row `row` on: elements [16 step, 16 step + 16) of the head.
  __device__ uint64_t rows(int row, int step) const {
    return after(wgmma_factor(address + row * 128, 0), step / 4 * kBoxBytes + step % 4 * 32);
  }
  /// As an MN-major operand: rows [16 step, 16 step + 16), elements of the head from a box of 64 on.
  __device__ uint64_t columns(int step, int box = 0) const {
    return after(wgmma_factor(address + box * kBoxBytes, kBoxBytes), step * 2048);
  }
  /// As columns(), for 32 elements: half of a box.
  __device__ uint64_t half_box_columns(int step, int box, int half) const {
    return after(wgmma_factor(address + box * kBoxBytes + half * 64, 0), step * 2048);
  }

 private:
  static __device__ uint64_t after(uint64_t factor, int bytes) {
    return kHalves ? advance(factor, static_cast<uint32_t>(bytes / 16)) : factor + static_cast<uint64_t>(bytes / 16);
  }
};

/// d = a bᵀ over a head: a's 64 rows from `row` on against all rows of b.
template <int kDim, int kSums, class A, class B>
__device__ inline void multiply_heads(float (&d)[kSums], const A& a, int row, const B& b) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) multiply_rows(d, a.rows(row, step), b.rows(0, step), step > 0);
}

#endif  // __CUDACC__

}  // namespace hone::cuda::sm90
