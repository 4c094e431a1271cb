// What the kernels of the gradients read besides the tensors: statistics of queries, and tiles sorted by their work.
#include "ops/attention/attention_hopper_cuda.h"

namespace hone::cuda::sm90 {

namespace {

constexpr int kThreads = 256;
constexpr float kLog2E = 1.44269504088896f;

/// The document of tile `tile` among tiles of kRows rows: the last one, n, with cu_seqlens[n] / kRows + n <= tile.
/// These starts rise by at least the tiles that a document needs.
template <int kRows>
__device__ int document_of(const int32_t* cu_seqlens, int num_documents, int tile) {
  int low = 0, high = num_documents;  // the document is in [low, high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (cu_seqlens[middle] / kRows + middle <= tile ? low : high) = middle;
  }
  return low;
}

struct TilesArgs {
  const int32_t* cu_seqlens;
  int num_documents, num_tiles;
  int window;
  int4 *unsorted, *key_tiles, *query_tiles;  // HopperTile
  int* counters;
};

__global__ void list_tiles_kernel(TilesArgs args) {
  const int tile = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (tile < 2) args.counters[tile] = 0;
  if (tile >= args.num_tiles) return;
  const int n = document_of<kHopperRows>(args.cu_seqlens, args.num_documents, tile);
  const int begin = args.cu_seqlens[n], first = (tile - (begin / kHopperRows + n)) * kHopperRows;
  args.unsorted[tile] = {begin, args.cu_seqlens[n + 1] - begin, first, (begin / kStatsRows + n) * kStatsRows};
}

struct Work {
  int queries;  ///< that go through a tile of keys
  int keys;     ///< that go through a tile of queries

  __device__ Work(int4 tile, int window) {
    const int length = tile.y, first = tile.z;
    const bool empty = first >= length;
    const int end = window > 0 ? min(length, first + kHopperRows + window) : length;
    const int begin = window > 0 ? max(0, first - window) : 0;
    queries = empty ? 0 : end - first;
    keys = empty ? 0 : first + kHopperRows - begin;
  }
};

/// Each tile finds its place in both lists by counting the tiles before it.
__global__ void sort_tiles_kernel(TilesArgs args) {
  const int tile = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (tile >= args.num_tiles) return;
  const int4 record = args.unsorted[tile];
  const Work work(record, args.window);
  int key_place = 0, query_place = 0;
  for (int i = 0; i < args.num_tiles; ++i) {
    const Work other(args.unsorted[i], args.window);
    key_place += other.queries > work.queries || (other.queries == work.queries && i < tile);
    query_place += other.keys > work.keys || (other.keys == work.keys && i < tile);
  }
  args.key_tiles[key_place] = record;
  args.query_tiles[query_place] = record;
}

struct StatsArgs {
  const __nv_bfloat16 *out, *dout;
  const float* lse;
  LseStrides strides;
  const int32_t* cu_seqlens;
  int num_documents;
  int64_t stats_rows;
  int num_heads, head_dim;
  HopperStats* stats;
};

/// kLanes threads for each query and head, a block for kStatsRows / 4 queries of one tile.
template <int kLanes>
__global__ void __launch_bounds__(kThreads) stats_kernel(StatsArgs args) {
  constexpr int kQueries = kStatsRows / 4, kGroups = kThreads / kLanes;
  const int tile = static_cast<int>(blockIdx.x) / 4, lane = static_cast<int>(threadIdx.x) % kLanes;
  const int n = document_of<kStatsRows>(args.cu_seqlens, args.num_documents, tile);
  const int begin = args.cu_seqlens[n], length = args.cu_seqlens[n + 1] - begin;
  const int first = (tile - (begin / kStatsRows + n)) * kStatsRows + static_cast<int>(blockIdx.x) % 4 * kQueries;
  if (first / kStatsRows * kStatsRows >= length) return;
  const int pairs = kQueries * args.num_heads;
  for (int done = 0; done < pairs; done += kGroups) {
    const int pair = done + static_cast<int>(threadIdx.x) / kLanes;
    const int query = first + pair / args.num_heads, head = pair % args.num_heads;
    float sum = 0.0f;
    if (pair < pairs && query < length && 8 * lane < args.head_dim) {
      const int64_t at = (static_cast<int64_t>(begin + query) * args.num_heads + head) * args.head_dim + 8 * lane;
      const auto a = load_pack(args.out + at), b = load_pack(args.dout + at);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(to_float(a.values[i]), to_float(b.values[i]), sum);
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane != 0 || pair >= pairs) continue;
    const int64_t row = (begin / kStatsRows + n) * kStatsRows + query;
    const float lse =
        query < length ? kLog2E * args.lse[head * args.strides.head + (begin + query) * args.strides.row] : INFINITY;
    args.stats[head * args.stats_rows + row] = {lse, sum};
  }
}

}  // namespace

HopperScratch::HopperScratch(ArenaScope& memory, const AttentionArgs& args) {
  const int64_t tokens = args.q.shape[0], documents = args.sequences.num_documents;
  tiles = tokens / kHopperRows + documents;
  // One tile more: a block of queries reads statistics for all of its kHopperRows.
  stats_rows = (tokens / kStatsRows + documents + 1) * kStatsRows;
  stats = memory.take({args.options.num_heads, stats_rows, 2}, DType::kF32);
  for (Tensor* list : {&unsorted, &key_tiles, &query_tiles}) *list = memory.take({tiles, 4}, DType::kI32);
  counters = memory.take({2}, DType::kI32);
}

bool hopper_attention_backward_serves(const Context& context, const AttentionArgs& args) {
  const AttentionOptions& options = args.options;
  return hopper(context) && args.q.dtype == DType::kBF16 && options.head_dim % 8 == 0 && options.head_dim <= 128 &&
         options.v_head_dim == options.head_dim && args.q.shape[0] <= INT32_MAX / 2 &&
         options.sliding_window <= INT32_MAX / 2;
}

void prepare_hopper_backward(const Context& context, const AttentionBackwardArgs& args, LseStrides strides,
                             const HopperScratch& scratch) {
  const AttentionArgs& forward = args.forward;
  const cudaStream_t stream = stream_of(context);
  const auto* cu_seqlens = elements<int32_t>(forward.sequences.cu_seqlens);
  const auto num_documents = static_cast<int>(forward.sequences.num_documents);
  const TilesArgs tiles{.cu_seqlens = cu_seqlens,
                        .num_documents = num_documents,
                        .num_tiles = static_cast<int>(scratch.tiles),
                        .window = static_cast<int>(forward.options.sliding_window),
                        .unsorted = reinterpret_cast<int4*>(scratch.unsorted.data),
                        .key_tiles = reinterpret_cast<int4*>(scratch.key_tiles.data),
                        .query_tiles = reinterpret_cast<int4*>(scratch.query_tiles.data),
                        .counters = elements<int>(scratch.counters)};
  const unsigned tile_blocks = blocks_for(scratch.tiles, kThreads);
  list_tiles_kernel<<<tile_blocks, kThreads, 0, stream>>>(tiles);
  check_launch("listing tiles of documents");
  sort_tiles_kernel<<<tile_blocks, kThreads, 0, stream>>>(tiles);
  check_launch("sorting tiles of documents");
  const StatsArgs stats{.out = elements<__nv_bfloat16>(forward.out),
                        .dout = elements<__nv_bfloat16>(args.dout),
                        .lse = elements<float>(forward.lse),
                        .strides = strides,
                        .cu_seqlens = cu_seqlens,
                        .num_documents = num_documents,
                        .stats_rows = scratch.stats_rows,
                        .num_heads = static_cast<int>(forward.options.num_heads),
                        .head_dim = static_cast<int>(forward.options.head_dim),
                        .stats = reinterpret_cast<HopperStats*>(scratch.stats.data)};
  auto* kernel = forward.options.head_dim <= 64 ? stats_kernel<8> : stats_kernel<16>;
  kernel<<<blocks_for(scratch.stats_rows / kStatsRows - 1, 1) * 4, kThreads, 0, stream>>>(stats);
  check_launch("computing the delta of attention");
}

HopperBackward::HopperBackward(const AttentionBackwardArgs& args, const HopperScratch& scratch,
                               const Tensor& sorted_tiles, int counter_index)
    : tiles(reinterpret_cast<const HopperTile*>(sorted_tiles.data)),
      num_tiles(static_cast<int>(scratch.tiles)),
      counter(elements<int>(scratch.counters) + counter_index),
      stats(reinterpret_cast<const HopperStats*>(scratch.stats.data)),
      stats_rows(scratch.stats_rows),
      num_heads(static_cast<int>(args.forward.options.num_heads)),
      num_kv_heads(static_cast<int>(args.forward.options.num_kv_heads)),
      head_dim(static_cast<int>(args.forward.options.head_dim)),
      scale(args.forward.options.scale),
      window(static_cast<int>(args.forward.options.sliding_window)),
      dq(args.dq),
      dk(args.dk),
      dv(args.dv) {}

}  // namespace hone::cuda::sm90
