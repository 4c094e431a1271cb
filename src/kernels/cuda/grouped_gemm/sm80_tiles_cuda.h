// The order of tiles of a CTA of tier sm80. Every thread iterates over the same list, derived from the groups' offsets
// in device memory. Included by *_cuda.cu only.
#pragma once

#include "kernels/cuda/sm80/product_cuda.h"

namespace hone::cuda::sm80 {

/// A tile: rows of one group by columns.
struct GroupTile {
  int group = 0;
  int row = 0, rows = 0;  ///< first row (over all groups) and count, at most kTileRows
  int n_tile = 0;
};

/// Tiles of products whose rows are sorted by group. In a group, bands of 8 tiles along m are traversed with m fastest,
/// so that concurrent CTAs share rows of A and columns of B in L2.
class RowTiles {
 public:
  __device__ RowTiles(const int64_t* offsets, int groups, int n_tiles)
      : offsets_(offsets), groups_(groups), n_tiles_(n_tiles), index_(static_cast<int>(blockIdx.x)) {}

  __device__ bool next(GroupTile& tile) {
    while (index_ >= end_) {  // end of this group's tiles
      if (++group_ == groups_) {
        --group_;
        return false;
      }
      row_begin_ = static_cast<int>(offsets_[group_]);
      row_end_ = static_cast<int>(offsets_[group_ + 1]);
      begin_ = end_;
      end_ += m_tiles() * n_tiles_;
    }
    constexpr int kBand = 8;
    const int in_group = index_ - begin_, band = in_group / (kBand * n_tiles_) * kBand;
    const int in_band = in_group - band * n_tiles_, band_size = min(kBand, m_tiles() - band);
    tile.group = group_;
    tile.row = row_begin_ + (band + in_band % band_size) * kTileRows;
    tile.rows = min(kTileRows, row_end_ - tile.row);
    tile.n_tile = in_band / band_size;
    index_ += static_cast<int>(gridDim.x);
    return true;
  }

 private:
  __device__ int m_tiles() const { return (row_end_ - row_begin_ + kTileRows - 1) / kTileRows; }

  const int64_t* offsets_;
  int groups_, n_tiles_;
  int index_, group_ = -1;
  int row_begin_ = 0, row_end_ = 0;
  int begin_ = 0, end_ = 0;  // tiles of the group
};

/// A tile of a group's weight gradient: rows m, columns n, summed over k_count rows from k_begin on.
struct WeightTile {
  int group = 0, m = 0, n = 0;
  int k_begin = 0, k_count = 0;
};

/// The time of a tile grows with the rows of its group, so groups with the most rows come first, and CTAs take tiles
/// from first to last, then from last to first.
class WeightTiles {
 public:
  static constexpr size_t shared_bytes(int groups) { return static_cast<size_t>(groups) * sizeof(int32_t); }

  /// Called by all threads of the CTA; the caller must add a barrier before the first next(). `order`:
  /// shared_bytes(groups).
  __device__ WeightTiles(int32_t* order, const int64_t* offsets, int groups, int m, int n)
      : order_(order),
        offsets_(offsets),
        groups_(groups),
        m_tiles_((m + kTileRows - 1) / kTileRows),
        n_tiles_((n + kTileColumns - 1) / kTileColumns) {
    for (int e = static_cast<int>(threadIdx.x); e < groups; e += static_cast<int>(blockDim.x)) {
      const int64_t rows = offsets[e + 1] - offsets[e];
      int larger = 0;
      for (int other = 0; other < groups; ++other) {
        const int64_t other_rows = offsets[other + 1] - offsets[other];
        larger += other_rows > rows || (other_rows == rows && other < e);
      }
      order[larger] = e;
    }
  }

  __device__ bool next(WeightTile& tile) {
    const int in_turn = turn_ % 2 == 0 ? static_cast<int>(blockIdx.x) : static_cast<int>(gridDim.x - 1 - blockIdx.x);
    const int index = turn_ * static_cast<int>(gridDim.x) + in_turn, position = index / (m_tiles_ * n_tiles_);
    if (position >= groups_) return false;
    ++turn_;
    const int in_group = index - position * m_tiles_ * n_tiles_;
    tile.group = order_[position];
    tile.m = in_group % m_tiles_ * kTileRows;
    tile.n = in_group / m_tiles_ * kTileColumns;
    tile.k_begin = static_cast<int>(offsets_[tile.group]);
    tile.k_count = static_cast<int>(offsets_[tile.group + 1]) - tile.k_begin;
    return true;
  }

 private:
  const int32_t* order_;
  const int64_t* offsets_;
  int groups_, m_tiles_, n_tiles_;
  int turn_ = 0;
};

}  // namespace hone::cuda::sm80
