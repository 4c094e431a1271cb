// Tiles of packed documents, the order in which CTAs process them, and the statistics of queries: shared by attention's
// tensor-core kernels of all tiers. Included by *_cuda.cu only.
#pragma once

#include "core/stream/cuda_launch.h"
#include "kernels/cuda/ptx_cuda.h"
#include "ops/attention/attention.h"

namespace hone::cuda {

/// Rows of a tile, which one CTA processes: queries in forward, keys in backward.
inline constexpr int kAttentionRows = 128;
/// Statistics of queries are padded to multiples of this in each document.
inline constexpr int kStatsRows = 128;

/// A tile of kAttentionRows rows of one document.
struct AttentionTile {
  int32_t begin;   ///< first row of the document
  int32_t length;  ///< rows of the document
  int32_t first;   ///< first row of the tile, relative to `begin`; >= `length`: an empty tile
  int32_t stats;   ///< index of the document's first statistic
};

/// The tiles of all documents, in scratch memory. Every head has the same list.
struct AttentionTiles {
  Tensor unsorted;  ///< [count, 4] int32
  Tensor sorted;    ///< [count, 4] int32: most work first; tiles of equal work in document order
  Tensor counter;   ///< [1] int32: number of items that CTAs have taken
  int64_t count = 0;

  AttentionTiles(ArenaScope& memory, const AttentionArgs& args);
  const AttentionTile* data() const { return reinterpret_cast<const AttentionTile*>(sorted.data); }
};

/// The work of a tile: the keys that its queries attend to, or the queries that attend to its keys.
enum class TileWork { kKeys, kQueries };
void list_attention_tiles(const Context& context, const AttentionArgs& args, TileWork work,
                          const AttentionTiles& tiles);

/// Statistics of queries for the gradients, in scratch memory.
struct QueryStats {
  Tensor shifts;  ///< [Hq, rows] float32: −lse · log2 e; −infinity beyond the end of a document
  Tensor deltas;  ///< [Hq, rows] float32: δ
  int64_t rows = 0;

  QueryStats(ArenaScope& memory, const AttentionArgs& args);
};
void compute_query_stats(const Context& context, const AttentionBackwardArgs& args, const QueryStats& stats);

#ifdef __CUDACC__

/// Tiles and heads in the order in which CTAs process them. A CTA that has finished takes the next item of the sorted
/// list, so that all end at about the same time. The result does not depend on which CTA computes a tile.
struct TileItems {
  const AttentionTile* tiles;
  int heads, count;
  int* counter;

  /// Called by one thread of the CTA: the next item, or -1 if there are none left.
  __device__ int take() const {
    const int item = atomicAdd(counter, 1);
    return item < count && tiles[item / heads].first < tiles[item / heads].length ? item : -1;
  }
  __device__ AttentionTile tile(int item) const { return tiles[item / heads]; }
  __device__ int head(int item) const { return item % heads; }
};

/// The steps of a tile of queries: kKeys keys each, from row key(i) of the document on, last keys first.
template <int kKeys>
struct KeySteps {
  int begin, count;

  __device__ KeySteps(const AttentionTile& tile, int window)
      : begin(window > 0 ? max(tile.first - window + 1, 0) / kKeys * kKeys : 0),
        count((min(tile.first + kAttentionRows, tile.length) - begin + kKeys - 1) / kKeys) {}
  __device__ int key(int i) const { return begin + (count - 1 - i) * kKeys; }
};

/// The next queries of one head for a tile of keys.
struct QueryStep {
  int query, head;  ///< first row in the document
  int turn, turns;  ///< the tile's index among the tiles of keys that add to these queries' dq, and their number
  int block;        ///< index of the partial sum in memory, if turns > 1
};

/// The steps of a tile of kKeys keys: each has kQueries queries of one head, last queries first, with all heads of the
/// group for each. So a tile visits its queries in the same order as the previous tile of the document, which then
/// continues with queries that do not attend to this one.
template <int kQueries, int kKeys>
struct QuerySteps {
  AttentionTile tile;
  int window, group, count;
  int query, head = 0;  ///< head of the group

  __device__ QuerySteps(const AttentionTile& of_tile, int window_of, int heads_of_group)
      : tile(of_tile), window(window_of), group(heads_of_group) {
    const int keys = min(tile.length - tile.first, kKeys);
    const int end = window > 0 ? min(tile.length, tile.first + keys - 1 + window) : tile.length;
    const int blocks = (end - tile.first + kQueries - 1) / kQueries;
    count = blocks * group;
    query = tile.first + (blocks - 1) * kQueries;
  }
  __device__ void advance() {
    if (++head == group) head = 0, query -= kQueries;
  }
  /// The tiles of keys that these queries attend to add to their dq one after another, in document order. The first
  /// kKeys rows of a document attend to one tile only.
  __device__ QueryStep record(int kv_head) const {
    const int first_tile = window > 0 ? max(query - window + 1, 0) / kKeys : 0;
    return {.query = query,
            .head = kv_head * group + head,
            .turn = tile.first / kKeys - first_tile,
            .turns = query / kKeys - first_tile + 1,
            .block = tile.begin / kQueries + (query - kKeys) / kQueries};
  }
};

#endif  // __CUDACC__

}  // namespace hone::cuda
