// The backward pass of attention on tier sm80: a CTA owns keys of one key-value head and visits the queries that attend
// to them, kQueries of one head at a time; five products per step.
//
//   barrier: queries have arrived    S = Q Kᵀ, dP = dO Vᵀ, P, dS to shared memory
//   barrier: P and dS are complete   dV += Pᵀ dO, dK += dSᵀ Q, dQ = dS K
//
// A query's dq is a sum over CTAs, which add in document order (turns): each initializes its accumulators from the sum
// in memory, which has their layout, instead of zero. A warp waits for the same warp of the previous CTA, so that no
// barrier is needed. The previous tile of a document comes earlier in the list and visits the same queries in the same
// order, so a CTA rarely waits, and only for CTAs that have started.
//
// Registers (ptxas 13.0): up to 255 of 255; heads of 128 have 128 accumulators of dk and dv and 64 of scores, and spill
// 144 bytes, all of them addresses. Ceiling on an H200 for heads of 128: a step of 64 queries by 128 keys reads 576 KB
// of fragments and writes 64 KB, 5,120 clocks of shared memory against some 4,100 of MMAs.
//
// Measured on one H200 limited to this tier, 2026-11-23, causal, model TFLOP/s: 4 x 4096, 32/4 heads of 128: 192 (137
// with the 99 KB of Ada; FlashAttention-2 in torch 249 on the same GPU); heads of 64: 157 (186); 192/128: 152; 256: 169
// (212). Raw: bench/results/sm80-kernels-2026-11-23.txt.
#include "kernels/cuda/tiers.h"
#include "ops/attention/sm80/attention_cuda.h"

namespace hone::cuda::sm80 {

namespace {

/// Heads of up to kDimOf elements, values of up to kValueDimOf. With two stages, one is loaded while the other is
/// multiplied.
template <int kDimOf, int kValueDimOf, int kKeysOf, int kQueriesOf, int kStagesOf, int kWarpsOf = 8>
struct BackwardShape {
  static constexpr int kDim = kDimOf, kValueDim = kValueDimOf, kKeys = kKeysOf, kQueries = kQueriesOf;
  static constexpr int kStages = kStagesOf, kWarps = kWarpsOf, kThreads = 32 * kWarps, kCtas = 1;
  static_assert(kAttentionRows % kKeys == 0 && kKeys % kQueries == 0);
  // Division of products among warps: scores and dQ [queries, ·] 2 x kWarps / 2, dK and dV [keys, ·] kKeysWays x
  // kDimWays.
  static constexpr int kQueryWays = 2, kAcross = kWarps / 2;
  static constexpr int kKeyWays = kWarps / 2, kDimWays = 2;
  static constexpr int kQueryTiles = kQueries / kQueryWays / 16;  // tiles of 16 rows per warp
  static constexpr int kKeyTiles = kKeys / kKeyWays / 16;
  static_assert(kQueryTiles > 0 && kKeyTiles > 0 && kKeys / kAcross % 16 == 0);

  using Keys = SharedLines<kKeys, kDim>;
  using Values = SharedLines<kKeys, kValueDim>;
  using Queries = SharedLines<kQueries, kDim>;
  using Douts = SharedLines<kQueries, kValueDim>;
  using Scores = SharedLines<kQueries, kKeys>;
  static constexpr int kStatsBytes = 2 * kQueries * 4;
  static constexpr int kStageBytes = Queries::kBytes + Douts::kBytes + kStatsBytes;
  static constexpr int kScoresBegin = Keys::kBytes + Values::kBytes, kStagesBegin = kScoresBegin + 2 * Scores::kBytes;
  static constexpr int kBytes = kStagesBegin + kStages * kStageBytes;
};

struct BackwardArgs {
  const AttentionTile* tiles;  // sorted
  int* counter;
  int items;
  const __nv_bfloat16 *q, *k, *v, *dout;
  const float *shifts, *deltas;  // [Hq, stats_rows]
  int64_t stats_rows;
  int* turns;         // [Hq, query_blocks, warps]
  float* partial_dq;  // [Hq, query_blocks, …]
  int64_t query_blocks;
  int num_heads, num_kv_heads, head_dim, v_head_dim;
  float scale;
  int window;  // 0: none
  Gradient dq, dk, dv;
};

/// kWays warps share columns: this one has the 16 columns from 16 · way on, then every kWays-th 16. Returns the first
/// column of its n-tile j.
template <int kWays>
__device__ inline int column_of_tile(int way, int j) {
  return (j / 2 * kWays + way) * 16 + j % 2 * 8;
}

/// d += a b over kK16 steps of k; a from `read_a`, the warp's columns of b interleaved with those of kWays - 1 others.
template <int kWays, int kK16, int kM, int kN, class ReadA, class ReadB>
__device__ inline void add_interleaved(Accumulators<kM, kN>& d, const ReadA& read_a, uint32_t a_offset,
                                       const ReadB& read_b, uint32_t b_offset) {
#pragma unroll
  for (int k16 = 0; k16 < kK16; ++k16) {
    Fragment a[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) read_a.read(a[m], m, k16, a_offset);
#pragma unroll
    for (int n = 0; n < kN / 2; ++n) {
      Fragment b;
      read_b.read(b, n * kWays, k16, b_offset);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_m16n8k16(d[m][2 * n], a[m], b[0], b[1]);
        mma_m16n8k16(d[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// d += a bᵀ over kK16 steps along the heads; a in the stage at `a_offset`.
template <int kK16, int kM, int kN, class ReadA, class ReadB>
__device__ inline void add_scores(Accumulators<kM, kN>& d, const ReadA& read_a, const ReadB& read_b,
                                  uint32_t a_offset) {
#pragma unroll
  for (int k16 = 0; k16 < kK16; ++k16) {
    Fragment a[kM], b[kN / 2];
#pragma unroll
    for (int m = 0; m < kM; ++m) read_a.read(a[m], m, k16, a_offset);
#pragma unroll
    for (int n = 0; n < kN / 2; ++n) read_b.read(b[n], n, k16);
    multiply(d, a, b);
  }
}

/// Calls f(four accumulators, index) for all accumulators of a thread.
template <int kM, int kN, class F>
__device__ inline void each_quad(Accumulators<kM, kN>& sums, const F& f) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; ++j) f(sums[i][j], i * kN + j);
  }
}

/// Writes `factor` times accumulators as rows of a gradient, from row `first_row` of the tile's document on; skips
/// elements beyond document and head.
template <int kWays, int kM, int kN>
__device__ inline void store_gradient(const Gradient& gradient, const Accumulators<kM, kN>& sums, float factor,
                                      const AttentionTile& tile, int first_row, int way, int head, int heads,
                                      int head_dim) {
  if (gradient.data == nullptr) return;
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * i + 8 * half + accumulator_row();
      if (row >= tile.length) continue;
      const int64_t begin = (int64_t{tile.begin + row} * heads + head) * head_dim;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const int element = column_of_tile<kWays>(way, j) + accumulator_column();
        if (element >= head_dim) continue;
        gradient.store_pair(begin + element, factor * sums[i][j][2 * half], factor * sums[i][j][2 * half + 1]);
      }
    }
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kCtas)
    backward_kernel(const __grid_constant__ BackwardArgs args) {
  constexpr int kThreads = Shape::kThreads, kQueries = Shape::kQueries, kKeys = Shape::kKeys, kDim = Shape::kDim;
  constexpr int kValueDim = Shape::kValueDim, kM = Shape::kQueryTiles, kScoreTiles = kKeys / Shape::kAcross / 8;
  extern __shared__ __align__(128) char memory[];
  // CTAs take items in list order, so a CTA only waits for items that have been started.
  __shared__ int taken;
  if (threadIdx.x == 0) taken = atomicAdd(args.counter, 1);
  __syncthreads();
  constexpr int kParts = kAttentionRows / kKeys;  // parts of a tile of the list
  const int in_tile = taken % (args.num_kv_heads * kParts), kv_head = in_tile % args.num_kv_heads;
  AttentionTile tile = args.tiles[taken / (args.num_kv_heads * kParts)];
  tile.first += in_tile / args.num_kv_heads * kKeys;
  if (tile.first >= tile.length) return;

  const typename Shape::Keys k{shared_address(memory)};
  const typename Shape::Values v{k.address + Shape::Keys::kBytes};
  const typename Shape::Scores p{k.address + Shape::kScoresBegin}, ds{p.address + Shape::Scores::kBytes};
  const typename Shape::Queries q{k.address + Shape::kStagesBegin};
  const typename Shape::Douts dout{q.address + Shape::Queries::kBytes};
  constexpr int kStatsBegin = Shape::kStagesBegin + Shape::Queries::kBytes + Shape::Douts::kBytes;

  QuerySteps<kQueries, kKeys> at(tile, args.window, args.num_heads / args.num_kv_heads), next = at;
  const int count = at.count;
  // Loads the queries of the step at `next`, and advances it.
  const auto load_queries = [&](int step) {
    const QueryStep record = next.record(kv_head);
    next.advance();
    const uint32_t offset = static_cast<uint32_t>(step % Shape::kStages * Shape::kStageBytes);
    const HeadRows of_q(args.q, tile.begin, record.head, args.num_heads, args.head_dim);
    const HeadRows of_dout(args.dout, tile.begin, record.head, args.num_heads, args.v_head_dim);
    copy_rows<kQueries, kDim, kThreads>({q.address + offset}, of_q, record.query, tile.length);
    copy_rows<kQueries, kValueDim, kThreads>({dout.address + offset}, of_dout, record.query, tile.length);
    constexpr int kUnits = kQueries / 4;  // 16-byte units of one statistic
    if (threadIdx.x < 2 * kUnits) {
      const int unit = static_cast<int>(threadIdx.x) % kUnits;
      const float* from = threadIdx.x < kUnits ? args.shifts : args.deltas;
      cp_async_16(k.address + kStatsBegin + offset + threadIdx.x * 16,
                  from + record.head * args.stats_rows + tile.stats + record.query + unit * 4, true);
    }
  };
  copy_rows<kKeys, kDim, kThreads>(k, HeadRows(args.k, tile.begin, kv_head, args.num_kv_heads, args.head_dim),
                                   tile.first, tile.length);
  copy_rows<kKeys, kValueDim, kThreads>(v, HeadRows(args.v, tile.begin, kv_head, args.num_kv_heads, args.v_head_dim),
                                        tile.first, tile.length);
  load_queries(0);
  cp_async_commit();

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = warp / Shape::kAcross * (kQueries / Shape::kQueryWays), across = warp % Shape::kAcross;
  const int column = across * (kKeys / Shape::kAcross);  // column of the scores
  const int key_row = warp / Shape::kDimWays * (kKeys / Shape::kKeyWays), dim_way = warp % Shape::kDimWays;
  const FragmentReader<typename Shape::Queries, false, true> scores_q(q, row);
  const FragmentReader<typename Shape::Keys, false, false> scores_k(k, column);
  const FragmentReader<typename Shape::Douts, false, true> scores_dout(dout, row);
  const FragmentReader<typename Shape::Values, false, false> scores_v(v, column);
  const FragmentReader<typename Shape::Scores, true, true> of_p(p, key_row), of_ds(ds, key_row);
  const FragmentReader<typename Shape::Douts, true, false> dv_dout(dout, 16 * dim_way);
  const FragmentReader<typename Shape::Queries, true, false> dk_q(q, 16 * dim_way);
  const FragmentReader<typename Shape::Scores, false, true> dq_ds(ds, row);
  const FragmentReader<typename Shape::Keys, true, false> dq_k(k, 16 * across);

  Accumulators<Shape::kKeyTiles, kDim / Shape::kDimWays / 8> dk;
  Accumulators<Shape::kKeyTiles, kValueDim / Shape::kDimWays / 8> dv;
  clear(dk);
  clear(dv);
  const float scale_log2 = args.scale * kLog2E;
#pragma unroll 1
  for (int i = 0; i < count; ++i, at.advance()) {
    const QueryStep step = at.record(kv_head);
    const uint32_t stage = static_cast<uint32_t>(i % Shape::kStages * Shape::kStageBytes);
    cp_async_wait<0>();
    __syncthreads();
    if (Shape::kStages > 1 && i + 1 < count) {
      load_queries(i + 1);
      cp_async_commit();
    }
    {
      Accumulators<kM, kScoreTiles> s, dp;
      clear(s);
      clear(dp);
      add_scores<kDim / 16>(s, scores_q, scores_k, stage);
      add_scores<kValueDim / 16>(dp, scores_dout, scores_v, stage);
      const int first_query = step.query + row, first_key = tile.first + column;
      const bool hides = first_key + kKeys / Shape::kAcross - 1 > first_query ||
                         (args.window > 0 && first_query + kQueries / 2 - 1 - first_key >= args.window);
      const float* stats = reinterpret_cast<const float*>(memory + kStatsBegin + stage);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int line = row + 16 * m + 8 * half + accumulator_row();
          const float shift = stats[line], delta = stats[kQueries + line];
#pragma unroll
          for (int j = 0; j < kScoreTiles; ++j) {
            float probability[2], gradient[2];
#pragma unroll
            for (int x = 0; x < 2; ++x) {
              const int distance = step.query + line - (first_key + 8 * j + accumulator_column() + x);
              const bool hidden = hides && (distance < 0 || (args.window > 0 && distance >= args.window));
              const float e = exp2_approximate(fmaf(scale_log2, s[m][j][2 * half + x], shift));
              probability[x] = hidden ? 0.0f : e;
              gradient[x] = probability[x] * (dp[m][j][2 * half + x] - delta);
            }
            const uint32_t in_unit = static_cast<uint32_t>(accumulator_column() * 2);
            const int unit = column / 8 + j;
            shared_store_32(p.unit(line, unit) + in_unit, pack_bf16(probability[0], probability[1]));
            shared_store_32(ds.unit(line, unit) + in_unit, pack_bf16(gradient[0], gradient[1]));
          }
        }
      }
    }
    __syncthreads();
    add_interleaved<Shape::kDimWays, kQueries / 16>(dv, of_p, 0, dv_dout, stage);
    Accumulators<kM, kDim / Shape::kAcross / 8> dq;
    int* turn = args.turns + (step.head * args.query_blocks + step.block) * Shape::kWarps + warp;
    float* partial =
        args.partial_dq + (step.head * args.query_blocks + step.block) * (kQueries * kDim) + threadIdx.x * 4;
    if (step.turn > 0) {
      if (lane_of_warp() == 0) {
        while (load_acquire(turn) != step.turn) {
        }
      }
      __syncwarp();
      each_quad(dq, [&](float(&quad)[4], int index) {
        const float4 before = __ldcg(reinterpret_cast<const float4*>(partial + index * kThreads * 4));
        quad[0] = before.x, quad[1] = before.y, quad[2] = before.z, quad[3] = before.w;
      });
    } else {
      clear(dq);
    }
    add_interleaved<Shape::kDimWays, kQueries / 16>(dk, of_ds, 0, dk_q, stage);
    add_interleaved<Shape::kAcross, kKeys / 16>(dq, dq_ds, 0, dq_k, 0);
    if (step.turn == step.turns - 1) {
      store_gradient<Shape::kAcross>(args.dq, dq, args.scale, tile, step.query + row, across, step.head, args.num_heads,
                                     args.head_dim);
    } else {
      each_quad(dq, [&](float(&quad)[4], int index) {
        __stcg(reinterpret_cast<float4*>(partial + index * kThreads * 4), float4{quad[0], quad[1], quad[2], quad[3]});
      });
      __syncwarp();
      if (lane_of_warp() == 0) store_release(turn, step.turn + 1);
    }
    if (Shape::kStages == 1 && i + 1 < count) {
      __syncthreads();
      load_queries(i + 1);
      cp_async_commit();
    }
  }
  store_gradient<Shape::kDimWays>(args.dk, dk, args.scale, tile, tile.first + key_row, dim_way, kv_head,
                                  args.num_kv_heads, args.head_dim);
  store_gradient<Shape::kDimWays>(args.dv, dv, 1.0f, tile, tile.first + key_row, dim_way, kv_head, args.num_kv_heads,
                                  args.v_head_dim);
}

template <class Shape>
void launch(const Context& context, const BackwardArgs& args) {
  check(cudaFuncSetAttribute(backward_kernel<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes),
        "preparing attention's gradients");
  backward_kernel<Shape><<<blocks_for(args.items, 1), Shape::kThreads, Shape::kBytes, stream_of(context)>>>(args);
  check_launch("computing the gradients of attention");
}

/// Calls f with the shape for these heads.
template <class F>
void with_backward_shape(const Context& context, const AttentionOptions& options, const F& f) {
  with_attention_shape<BackwardShape<64, 64, 128, 64, 2>,                                           // 97 KB
                       BackwardShape<128, 128, 128, 64, 2>, BackwardShape<128, 128, 64, 64, 1>,     // 161, 81 KB
                       BackwardShape<192, 128, 64, 64, 2>, BackwardShape<192, 128, 64, 64, 1>,      // 137, 97 KB
                       BackwardShape<256, 256, 64, 64, 1>, BackwardShape<256, 256, 32, 32, 1, 4>>(  // 145, 68 KB
      options.head_dim, options.v_head_dim, kernel_tiers(context).shared_memory, f);
}

}  // namespace

BackwardScratch::BackwardScratch(const Context& context, ArenaScope& memory, const AttentionArgs& args)
    : tiles(memory, args), stats(memory, args) {
  const int64_t tokens = args.q.shape[0], heads = args.options.num_heads;
  with_backward_shape(context, args.options, [&](auto shape) {
    using Shape = decltype(shape);
    query_blocks = tokens / Shape::kQueries;
    turns = memory.take({heads, query_blocks, Shape::kWarps}, DType::kI32);
    partial_dq = memory.take({heads, query_blocks, Shape::kQueries, Shape::kDim}, DType::kF32);
  });
}

void sm80_attention_backward(const Context& context, const AttentionBackwardArgs& args,
                             const BackwardScratch& scratch) {
  const AttentionArgs& forward = args.forward;
  const AttentionOptions& options = forward.options;
  list_attention_tiles(context, forward, TileWork::kQueries, scratch.tiles);
  if (scratch.query_blocks > 0) {
    check(cudaMemsetAsync(scratch.turns.data, 0, scratch.turns.bytes(), stream_of(context)), "clearing turns");
  }
  compute_query_stats(context, args, scratch.stats);
  with_backward_shape(context, options, [&](auto shape) {
    using Shape = decltype(shape);
    const int64_t items = scratch.tiles.count * (kAttentionRows / Shape::kKeys) * options.num_kv_heads;
    HONE_ASSERT(items <= INT32_MAX);
    launch<Shape>(context, {.tiles = scratch.tiles.data(),
                            .counter = elements<int>(scratch.tiles.counter),
                            .items = static_cast<int>(items),
                            .q = elements<__nv_bfloat16>(forward.q),
                            .k = elements<__nv_bfloat16>(forward.k),
                            .v = elements<__nv_bfloat16>(forward.v),
                            .dout = elements<__nv_bfloat16>(args.dout),
                            .shifts = elements<float>(scratch.stats.shifts),
                            .deltas = elements<float>(scratch.stats.deltas),
                            .stats_rows = scratch.stats.rows,
                            .turns = elements<int>(scratch.turns),
                            .partial_dq = elements<float>(scratch.partial_dq),
                            .query_blocks = scratch.query_blocks,
                            .num_heads = static_cast<int>(options.num_heads),
                            .num_kv_heads = static_cast<int>(options.num_kv_heads),
                            .head_dim = static_cast<int>(options.head_dim),
                            .v_head_dim = static_cast<int>(options.v_head_dim),
                            .scale = options.scale,
                            .window = static_cast<int>(options.sliding_window),
                            .dq = Gradient(args.dq),
                            .dk = Gradient(args.dk),
                            .dv = Gradient(args.dv)});
  });
}

}  // namespace hone::cuda::sm80
