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
  int32_t stats;   ///< index of the document's first statistic; of tiles of queries (TileWork::kKeys), the document
};

/// The tiles of all documents, in scratch memory. Every head has the same list.
struct AttentionTiles {
  Tensor unsorted;  ///< [count, 4] int32
  Tensor sorted;    ///< [count, 4] int32: most work first; tiles of equal work in document order
  Tensor counters;  ///< [2] int32: number of items that CTAs have taken; number of tiles that are not empty
  int64_t count = 0;

  AttentionTiles(ArenaScope& memory, const AttentionArgs& args);
  const AttentionTile* data() const { return reinterpret_cast<const AttentionTile*>(sorted.data); }
};

/// The work of a tile: the keys that its queries attend to, or the queries that attend to its keys.
enum class TileWork { kKeys, kQueries };
/// Documents of fewer than `least_rows` rows have no tiles.
void list_attention_tiles(const Context& context, const AttentionArgs& args, TileWork work, const AttentionTiles& tiles,
                          int least_rows = 1);

/// Statistics of queries for the gradients, in scratch memory.
struct QueryStats {
  Tensor shifts;  ///< [Hq, rows] float32: −lse · log2 e; −infinity beyond the end of a document
  Tensor deltas;  ///< [Hq, rows] float32: δ
  int64_t rows = 0;

  QueryStats(ArenaScope& memory, const AttentionArgs& args);
};
void compute_query_stats(const Context& context, const AttentionBackwardArgs& args, const QueryStats& stats);

/// What one CTA processes at a time: rows of one head.
struct AttentionItem {
  AttentionTile tile;
  int head;
};

/// Tiles and heads in the order in which CTAs process them: all tiles of the first heads_at_a_time heads, most work
/// first, then all tiles of the next heads. A CTA that has finished takes the next item, so that all end at about the
/// same time. The result does not depend on which CTA computes a tile, nor on heads_at_a_time (attention_order.h).
///
/// With all of 128 key-value heads at a time, a head is read by one CTA, whose products wait for memory: each step of
/// 128 keys and values, 192 and 128 wide, has 128 FLOP a byte.
struct TileOrder {
  const AttentionTile* tiles;  ///< sorted
  int* counters;               ///< AttentionTiles::counters
  int heads;                   ///< heads of a tile: of queries in forward, of keys and values in backward
  int heads_at_a_time;         ///< a divisor of `heads`
  int parts = 1;               ///< in a tile, one after another: items of kAttentionRows / parts rows

  TileOrder(const Context& context, const AttentionArgs& args, const AttentionTiles& tiles, TileWork work,
            int parts = 1);

#ifdef __CUDACC__
  /// Called by one thread of the CTA: the index of the next item, or -1 if there are none left.
  __device__ int take() const;
  __device__ bool exists(int index) const;
  __device__ AttentionItem at(int index) const;
#endif
};

#ifdef __CUDACC__

/// The index-th item.
__device__ inline AttentionItem TileOrder::at(int index) const {
  const int of_pass = counters[1] * parts * heads_at_a_time, in_pass = index % of_pass;
  const int part = in_pass / heads_at_a_time;
  AttentionItem item{.tile = tiles[part / parts],
                     .head = index / of_pass * heads_at_a_time + in_pass % heads_at_a_time};
  item.tile.first += part % parts * (kAttentionRows / parts);
  return item;
}
__device__ inline bool TileOrder::exists(int index) const { return index < counters[1] * parts * heads; }
__device__ inline int TileOrder::take() const {
  const int index = atomicAdd(counters, 1);
  return exists(index) ? index : -1;
}

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
