// Lists and sorts the tiles of packed documents and computes the statistics of queries on the device: the host does not
// have the documents' lengths. Sorting compares all pairs of tiles, which are few (a tile per 128 tokens and document).
#include "ops/attention/attention_tiles_cuda.h"

#include "ops/attention/attention_order.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;
constexpr float kLog2E = 1.44269504088896f;

/// The document of tile `tile` among tiles of kRows rows: the last one, n, with cu_seqlens[n] / kRows + n <= tile.
/// These starts increase by at least the tiles that a document needs.
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
  int window, least_rows;
  TileWork work;
  int4 *unsorted, *sorted;  // AttentionTile
  int* counters;
};

__global__ void list_tiles_kernel(TilesArgs args) {
  const int tile = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (tile == 0) args.counters[0] = 0;
  if (tile >= args.num_tiles) return;
  const int n = document_of<kAttentionRows>(args.cu_seqlens, args.num_documents, tile);
  const int begin = args.cu_seqlens[n], first = (tile - (begin / kAttentionRows + n)) * kAttentionRows;
  const int length = args.cu_seqlens[n + 1] - begin;
  args.unsorted[tile] = {begin, length < args.least_rows ? 0 : length, first,
                         args.work == TileWork::kKeys ? n : (begin / kStatsRows + n) * kStatsRows};
}

/// Approximate work in rows. For tiles of keys it does not increase from tile to tile of a document.
__device__ int work_of(int4 tile, const TilesArgs& args) {
  const int length = tile.y, first = tile.z;
  if (first >= length) return 0;
  if (args.work == TileWork::kKeys) return first + kAttentionRows - (args.window > 0 ? max(first - args.window, 0) : 0);
  return (args.window > 0 ? min(length, first + kAttentionRows + args.window) : length) - first;
}

/// Each tile computes its position by counting the tiles before it. Tiles of a document keep their order, since they
/// add to dq in this order and a CTA may only wait for tiles that come before its own.
__global__ void sort_tiles_kernel(TilesArgs args) {
  const int tile = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (tile >= args.num_tiles) return;
  const int4 record = args.unsorted[tile];
  const int work = work_of(record, args);
  int place = 0, filled = 0;
  for (int i = 0; i < args.num_tiles; ++i) {
    const int other = work_of(args.unsorted[i], args);
    place += other > work || (other == work && i < tile);
    filled += other > 0;
  }
  args.sorted[place] = record;
  if (tile == 0) args.counters[1] = filled;
}

struct StatsArgs {
  const __nv_bfloat16 *out, *dout;
  const float* lse;  // [Hq, T]
  int64_t tokens;
  const int32_t* cu_seqlens;
  int num_documents;
  int64_t stats_rows;
  int num_heads, head_dim;
  float *shifts, *deltas;
};

constexpr int kStatsQueries = 16;  // queries per CTA
constexpr int kStatsBlocks = kStatsRows / kStatsQueries;

/// kLanes threads per query and head, a CTA per kStatsQueries queries of one tile.
template <int kLanes>
__global__ void __launch_bounds__(kThreads) stats_kernel(StatsArgs args) {
  constexpr int kGroups = kThreads / kLanes;
  const int tile = static_cast<int>(blockIdx.x) / kStatsBlocks, lane = static_cast<int>(threadIdx.x) % kLanes;
  const int n = document_of<kStatsRows>(args.cu_seqlens, args.num_documents, tile);
  const int begin = args.cu_seqlens[n], length = args.cu_seqlens[n + 1] - begin;
  const int first =
      (tile - (begin / kStatsRows + n)) * kStatsRows + static_cast<int>(blockIdx.x) % kStatsBlocks * kStatsQueries;
  if (first / kStatsRows * kStatsRows >= length) return;
  const int pairs = kStatsQueries * args.num_heads;
  for (int done = 0; done < pairs; done += kGroups) {
    const int pair = done + static_cast<int>(threadIdx.x) / kLanes;
    const int query = first + pair / args.num_heads, head = pair % args.num_heads;
    float sum = 0.0f;
    for (int column = 8 * lane; pair < pairs && query < length && column < args.head_dim; column += 8 * kLanes) {
      const int64_t at = (static_cast<int64_t>(begin + query) * args.num_heads + head) * args.head_dim + column;
      const auto a = load_pack(args.out + at), b = load_pack(args.dout + at);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(to_float(a.values[i]), to_float(b.values[i]), sum);
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane != 0 || pair >= pairs) continue;
    const int64_t row = (begin / kStatsRows + n) * kStatsRows + query;
    const int64_t at = head * args.stats_rows + row;
    const float lse = query < length ? args.lse[head * args.tokens + begin + query] : INFINITY;
    args.shifts[at] = -kLog2E * lse;
    args.deltas[at] = sum;
  }
}

}  // namespace

AttentionTiles::AttentionTiles(ArenaScope& memory, const AttentionArgs& args)
    : count(args.q.shape[0] / kAttentionRows + args.sequences.num_documents) {
  for (Tensor* list : {&unsorted, &sorted}) *list = memory.take({count, 4}, DType::kI32);
  counters = memory.take({2}, DType::kI32);
}

void list_attention_tiles(const Context& context, const AttentionArgs& args, TileWork work, const AttentionTiles& tiles,
                          int least_rows) {
  const cudaStream_t stream = stream_of(context);
  const TilesArgs kernel_args{.cu_seqlens = elements<int32_t>(args.sequences.cu_seqlens),
                              .num_documents = static_cast<int>(args.sequences.num_documents),
                              .num_tiles = static_cast<int>(tiles.count),
                              .window = static_cast<int>(args.options.sliding_window),
                              .least_rows = least_rows,
                              .work = work,
                              .unsorted = reinterpret_cast<int4*>(tiles.unsorted.data),
                              .sorted = reinterpret_cast<int4*>(tiles.sorted.data),
                              .counters = elements<int>(tiles.counters)};
  const unsigned blocks = blocks_for(tiles.count, kThreads);
  list_tiles_kernel<<<blocks, kThreads, 0, stream>>>(kernel_args);
  check_launch("listing tiles of documents");
  sort_tiles_kernel<<<blocks, kThreads, 0, stream>>>(kernel_args);
  check_launch("sorting tiles of documents");
}

TileOrder::TileOrder(const Context& context, const AttentionArgs& args, const AttentionTiles& of_tiles, TileWork work,
                     int of_parts)
    : tiles(of_tiles.data()), counters(elements<int>(of_tiles.counters)), parts(of_parts) {
  const AttentionOptions& options = args.options;
  const int64_t of_kv_head = work == TileWork::kKeys ? options.num_heads / options.num_kv_heads : 1;
  heads = static_cast<int>(options.num_kv_heads * of_kv_head);
  heads_at_a_time = static_cast<int>(kv_heads_at_a_time(queue_of(context).l2_bytes(), args) * of_kv_head);
}

QueryStats::QueryStats(ArenaScope& memory, const AttentionArgs& args)
    : rows((args.q.shape[0] / kStatsRows + args.sequences.num_documents) * kStatsRows) {
  for (Tensor* stats : {&shifts, &deltas}) *stats = memory.take({args.options.num_heads, rows}, DType::kF32);
}

void compute_query_stats(const Context& context, const AttentionBackwardArgs& args, const QueryStats& stats) {
  const AttentionArgs& forward = args.forward;
  const StatsArgs kernel_args{.out = elements<__nv_bfloat16>(forward.out),
                              .dout = elements<__nv_bfloat16>(args.dout),
                              .lse = elements<float>(forward.lse),
                              .tokens = forward.q.shape[0],
                              .cu_seqlens = elements<int32_t>(forward.sequences.cu_seqlens),
                              .num_documents = static_cast<int>(forward.sequences.num_documents),
                              .stats_rows = stats.rows,
                              .num_heads = static_cast<int>(forward.options.num_heads),
                              .head_dim = static_cast<int>(forward.options.v_head_dim),
                              .shifts = elements<float>(stats.shifts),
                              .deltas = elements<float>(stats.deltas)};
  const int64_t v_dim = forward.options.v_head_dim;
  auto* kernel = v_dim <= 64 ? stats_kernel<8> : v_dim <= 128 ? stats_kernel<16> : stats_kernel<32>;
  kernel<<<blocks_for(stats.rows, kStatsQueries), kThreads, 0, stream_of(context)>>>(kernel_args);
  check_launch("computing the delta of attention");
}

}  // namespace hone::cuda
