// The order of tiles of a pair of CTAs (a cluster). Every thread iterates over the same list, derived from the groups'
// offsets in device memory. Included by *_cuda.cu only.
#pragma once

// For targets other than sm_90a the kernels are empty and their helpers unused.
#pragma nv_diag_suppress 177

#include <cuda_runtime.h>

#include <cstdint>

namespace hone::cuda::sm90 {

constexpr int kMaxGroups = 1024;    // limited by their offsets in shared memory
constexpr int kTileM = 128;         // rows of a CTA's tile; a pair has two tiles
constexpr int kTileN = 192;         // columns, shared by the pair
constexpr int kTileK = 64;          // elements of a step along k: a line of 128 bytes
constexpr int kBlockM = 64;         // rows of one wgmma
constexpr int kPairM = 2 * kTileM;  // rows of a pair of CTAs

/// The part of a pair's tile that one CTA computes.
struct PairTile {
  int group = 0;
  int m_begin = 0, m_count = 0;  ///< rows; 0 if this CTA of the pair has no work
  int n_tile = 0;
  bool shared = true;            ///< the pair has one n_tile: each CTA loads half of B for both
  int k_begin = 0, k_count = 0;  ///< for weight gradients: the rows to sum over

  /// Rows [begin, begin + count), count <= kPairM, split so that the wgmma counts of both CTAs differ by at most one.
  __device__ void take_rows(int begin, int count, int rank) {
    const int blocks = (count + kBlockM - 1) / kBlockM;
    const int first = (blocks + 1) / 2 * kBlockM;
    m_begin = begin + (rank == 0 ? 0 : first);
    m_count = rank == 0 ? min(count, first) : max(count - first, 0);
  }
};

struct RowRange {
  int begin, count;
};

__device__ inline int pair_index() { return static_cast<int>(blockIdx.x) / 2; }
__device__ inline int pair_count() { return static_cast<int>(gridDim.x) / 2; }

/// Tiles of products whose rows are sorted by group. Groups follow each other; in a group, bands of 8 pair tiles along
/// m are traversed with m fastest, so that concurrent CTAs share rows of A and columns of B in L2. The last rows of a
/// group, too few for a pair, make one tile per CTA: the same rows, but adjacent columns.
class RowTiles {
 public:
  /// Size of `shared` in int32 elements.
  static constexpr int shared_size(int groups) { return 2 * (groups + 1); }

  /// Called by all threads of the CTA.
  __device__ RowTiles(int32_t* shared, const int64_t* offsets, int groups, int n_tiles, int rank)
      : row_begin_(shared), tile_begin_(shared + groups + 1), groups_(groups), n_tiles_(n_tiles), rank_(rank) {
    for (int e = static_cast<int>(threadIdx.x); e <= groups; e += static_cast<int>(blockDim.x)) {
      row_begin_[e] = static_cast<int32_t>(offsets[e]);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      const int lane = static_cast<int>(threadIdx.x);
      int before = 0;
      for (int first = 0; first < groups; first += 32) {
        const int e = first + lane;
        int sum = e < groups ? paired(e) * n_tiles + rests(e) * rest_tiles() : 0;
        for (int distance = 1; distance < 32; distance *= 2) {
          const int other = __shfl_up_sync(0xffffffffu, sum, distance);
          if (lane >= distance) sum += other;
        }
        if (e < groups) tile_begin_[e + 1] = before + sum;
        before += __shfl_sync(0xffffffffu, sum, 31);
      }
      if (lane == 0) tile_begin_[0] = 0;
    }
    __syncthreads();
  }

  __device__ bool next(PairTile& tile) {
    while (group_ < groups_ && index_ >= tile_begin_[group_ + 1]) ++group_;
    if (group_ == groups_) return false;
    tile.group = group_;
    const int in_group = index_ - tile_begin_[group_], begin = row_begin_[group_], end = row_begin_[group_ + 1];
    const int pairs = paired(group_);
    if (in_group < pairs * n_tiles_) {
      constexpr int kBand = 8;
      const int band = in_group / (kBand * n_tiles_) * kBand;
      const int in_band = in_group - band * n_tiles_;
      const int band_size = min(kBand, pairs - band);
      const int first = begin + (band + in_band % band_size) * kPairM;
      tile.n_tile = in_band / band_size;
      tile.shared = true;
      tile.take_rows(first, min(kPairM, end - first), rank_);
    } else {
      const int in_rests = in_group - pairs * n_tiles_;
      tile.m_begin = begin + pairs * kPairM + in_rests / rest_tiles() * kTileM;
      tile.n_tile = in_rests % rest_tiles() * 2 + rank_;
      tile.shared = false;
      tile.m_count = tile.n_tile < n_tiles_ ? min(kTileM, end - tile.m_begin) : 0;
    }
    index_ += pair_count();
    return true;
  }

 private:
  __device__ int rows(int e) const { return row_begin_[e + 1] - row_begin_[e]; }
  /// Pair tiles of a group along m, and tiles for one CTA's rows: a pair tile pays off from its fourth wgmma on.
  __device__ int paired(int e) const { return (rows(e) + kBlockM - 1) / kPairM; }
  __device__ int rests(int e) const { return max(rows(e) - paired(e) * kPairM + kTileM - 1, 0) / kTileM; }
  __device__ int rest_tiles() const { return (n_tiles_ + 1) / 2; }

  int32_t* row_begin_;
  int32_t* tile_begin_;
  int groups_, n_tiles_, rank_;
  int index_ = pair_index(), group_ = 0;
};

/// Tiles of weight gradients: the same tiles for each group. The time of a tile grows with the rows of its group, so
/// groups with the most rows come first, and pairs take tiles from first to last pair, then from last to first: for
/// Zipf-distributed rows of 128 groups the busiest pair has 1 to 9 % more work than the mean.
class WeightTiles {
 public:
  static constexpr int shared_size(int groups) { return 2 * groups + 1 + kApart; }

  /// m rows and n_tiles tiles of columns for each group.
  __device__ WeightTiles(int32_t* shared, const int64_t* offsets, int groups, int m, int n_tiles, int rank)
      : row_begin_(shared),
        order_(shared + groups + 1 + kApart),
        groups_(groups),
        m_(m),
        m_pairs_((m + kPairM - 1) / kPairM),
        n_tiles_(n_tiles),
        rank_(rank) {
    for (int e = static_cast<int>(threadIdx.x); e <= groups; e += static_cast<int>(blockDim.x)) {
      row_begin_[e] = static_cast<int32_t>(offsets[e]);
    }
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); e < groups; e += static_cast<int>(blockDim.x)) {
      const int rows = row_begin_[e + 1] - row_begin_[e];
      int larger = 0;
      for (int other = 0; other < groups; ++other) {
        const int other_rows = row_begin_[other + 1] - row_begin_[other];
        larger += other_rows > rows || (other_rows == rows && other < e);
      }
      order_[larger] = e;
    }
    __syncthreads();
  }

  __device__ bool next(PairTile& tile) {
    const int index = next_index(), position = index / group_tiles();
    if (position >= groups_) return false;
    const int in_group = index - position * group_tiles();
    ++turn_;
    tile.group = order_[position];
    tile.n_tile = in_group / m_pairs_;
    const int begin = in_group % m_pairs_ * kPairM;
    tile.take_rows(begin, min(kPairM, m_ - begin), rank_);
    const RowRange rows = rows_of(tile.group);
    tile.k_begin = rows.begin;
    tile.k_count = rows.count;
    return true;
  }

  /// The rows that the next tile sums over; empty after the last tile.
  __device__ RowRange rows_of_next() const {
    const int position = next_index() / group_tiles();
    return position < groups_ ? rows_of(order_[position]) : RowRange{0, 0};
  }

 private:
  /// The compiler reads row_begin_ 16 bytes at a time, past its end, which racecheck would report as a race with the
  /// writes of order_.
  static constexpr int kApart = 3;

  __device__ int group_tiles() const { return m_pairs_ * n_tiles_; }
  __device__ int next_index() const {
    return turn_ * pair_count() + (turn_ % 2 == 0 ? pair_index() : pair_count() - 1 - pair_index());
  }
  __device__ RowRange rows_of(int group) const {
    return {row_begin_[group], row_begin_[group + 1] - row_begin_[group]};
  }

  int32_t* row_begin_;
  int32_t* order_;
  int groups_, m_, m_pairs_, n_tiles_, rank_;
  int turn_ = 0;
};

}  // namespace hone::cuda::sm90
