// The backward pass of attention on tier sm80: a CTA owns keys of one key-value head and visits the queries that attend
// to them, kQueries of one head at a time; five products per step. Half of its warps hold dV, the other half dK. A pair
// of one warp of each has the same keys:
//
//   warp of dV     load dO; S = Q Kᵀ, P to the other warp of the pair; dV += Pᵀ dO, with P in registers
//   warp of dK     load Q; dP = dO Vᵀ, P from the other warp; dS to shared memory; dK += dSᵀ Q, with dS in registers;
//                  with dS of all pairs: dQ = dS K
//
// Warps wait for each other at barriers of what they need (stages, P of a pair, dS), and nowhere for the whole CTA:
// while some are at exponentials or at a turn, tensor cores have the products of others.
//
// A query's dq is a sum over CTAs, which add in document order (turns): the first one stores its part, others add to it
// in memory, and the last one reads the sum and writes dq. A warp waits for the same warp of the previous CTA only. The
// previous tile of a document comes earlier in the list and visits the same queries in the same order, so a CTA rarely
// waits, and only for CTAs that have started. The turn is read before the last wait for dS, so that the read costs no
// time, and published in the next step, when the writes before it are done.
//
// Registers (ptxas 13.0): up to 255 of 255. Spilled on 8.0: 112 bytes for heads of 128, at most 28 for others. These
// are addresses and counters: stored before the loop but for two counters, and read between products, never within one.
//
// Measured on one H200 limited to this tier, 2026-11-24, by a program of its own, causal, model TFLOP/s: 4 x 4096, 32/4
// heads of 128: 253 (205 with the 99 KB of Ada; two barriers of the CTA per step, all warps at the same product: 197
// and 138); heads of 64: 204 (159); 192/128: 160 (154); 256: 205 (170). With a fence after each read of a turn 232 for
// heads of 128; instead, sums are read and added in L2 only, after the branch on the turn. Raw:
// bench/results/sm80-attention-backward-2026-11-24.txt.
#include "kernels/cuda/tiers.h"
#include "ops/attention/sm80/attention_cuda.h"

namespace hone::cuda::sm80 {

namespace {

/// Heads of up to kDimOf elements, values of up to kValueDimOf; kPairs pairs of warps with 16 kKeyTilesOf keys each;
/// kQueriesOf queries per step, of which kStagesOf steps are in shared memory.
template <int kDimOf, int kValueDimOf, int kKeyTilesOf, int kQueriesOf, int kStagesOf, int kPairsOf = 4>
struct BackwardShape {
  static constexpr int kDim = kDimOf, kValueDim = kValueDimOf, kKeyTiles = kKeyTilesOf, kQueries = kQueriesOf;
  static constexpr int kStages = kStagesOf, kPairs = kPairsOf, kGroupThreads = 32 * kPairs;
  static constexpr int kThreads = 2 * kGroupThreads, kCtas = 1;
  static constexpr int kWarpKeys = 16 * kKeyTiles, kKeys = kPairs * kWarpKeys;
  static_assert(kAttentionRows % kKeys == 0 && kKeys % kQueries == 0);
  // Division of dQ [queries, dim] among the warps of keys, in kDqParts parts one after another, so that accumulators
  // fit beside those of dK.
  static constexpr int kQueryWays = kQueries >= 64 ? 2 : 1, kDimWays = kPairs / kQueryWays;
  static constexpr int kQueryTiles = kQueries / kQueryWays / 16;
  static constexpr int kDkRegisters = kKeyTiles * kDim / 2, kDqRegisters = kQueryTiles * kDim / kDimWays / 2;
  static constexpr int kDqParts = kDkRegisters + kDqRegisters <= 192 ? 1 : 2;

  using Keys = SharedLines<kKeys, kDim>;
  using Values = SharedLines<kKeys, kValueDim>;
  using Queries = SharedLines<kQueries, kDim>;
  using Douts = SharedLines<kQueries, kValueDim>;
  using ScoreGradients = SharedLines<kKeys, kQueries>;
  static constexpr int kStatsBytes = kQueries * 4;
  static constexpr int kQueriesBegin = Keys::kBytes + Values::kBytes;
  static constexpr int kDoutsBegin = kQueriesBegin + kStages * Queries::kBytes;
  static constexpr int kScoresBegin = kDoutsBegin + kStages * Douts::kBytes;  // dS, then P
  static constexpr int kProbabilitiesBegin = kScoresBegin + ScoreGradients::kBytes;
  static constexpr int kShiftsBegin = kProbabilitiesBegin + kKeys * kQueries * 2;
  static constexpr int kDeltasBegin = kShiftsBegin + kStages * kStatsBytes;
  static constexpr int kBarriersBegin = kDeltasBegin + kStages * kStatsBytes;
  // Barriers: of stages, of pairs, of dS; each as "full", then "empty".
  static constexpr int kBarriers = 4 * kStages + 2 * kPairs + 2;
  static constexpr int kBytes = kBarriersBegin + 8 * kBarriers;
};

struct BackwardArgs {
  const AttentionTile* tiles;  // sorted
  int* counter;
  int items;
  const __nv_bfloat16 *q, *k, *v, *dout;
  const float *shifts, *deltas;  // [Hq, stats_rows]
  int64_t stats_rows;
  int* turns;         // [Hq, query_blocks, pairs]
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

/// d += a b over kK16 steps of k. read_a(fragments, k16) and read_b(fragment, n, k16) load operands; each is called one
/// fragment (a: one step) before the products that need it.
template <int kK16, int kM, int kN, class ReadA, class ReadB>
__device__ inline void add_product(Accumulators<kM, kN>& d, const ReadA& read_a, const ReadB& read_b) {
  constexpr int kPairs = kN / 2;
  Fragment a[2][kM], b[2];
  read_a(a[0], 0);
  read_b(b[0], 0, 0);
#pragma unroll
  for (int k16 = 0; k16 < kK16; ++k16) {
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      const int now = k16 * kPairs + n;
      if (n == 0 && k16 + 1 < kK16) read_a(a[(k16 + 1) % 2], k16 + 1);
      if (now + 1 < kK16 * kPairs) read_b(b[(now + 1) % 2], (now + 1) % kPairs, (now + 1) / kPairs);
#pragma unroll
      for (int x = 0; x < 2; ++x) {
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma_m16n8k16(d[m][2 * n + x], a[k16 % 2][m], b[now % 2][2 * x], b[now % 2][2 * x + 1]);
        }
      }
    }
  }
}

/// As add_product, with a in registers.
template <int kM, int kN, int kK16, class ReadB>
__device__ inline void add_gradient(Accumulators<kM, kN>& d, const Fragment (&a)[kM][kK16], const ReadB& read_b) {
  constexpr int kPairs = kN / 2;
  Fragment b[2];
  read_b(b[0], 0, 0);
#pragma unroll
  for (int k16 = 0; k16 < kK16; ++k16) {
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      const int now = k16 * kPairs + n;
      if (now + 1 < kK16 * kPairs) read_b(b[(now + 1) % 2], (now + 1) % kPairs, (now + 1) / kPairs);
#pragma unroll
      for (int x = 0; x < 2; ++x) {
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma_m16n8k16(d[m][2 * n + x], a[m][k16], b[now % 2][2 * x], b[now % 2][2 * x + 1]);
        }
      }
    }
  }
}

/// Returns a function for add_product that reads the kM tiles of 16 rows of operand A.
template <int kM, class Reader>
__device__ inline auto rows_of(const Reader& reader, uint32_t offset = 0) {
  return [reader, offset](Fragment(&a)[kM], int k16) {
#pragma unroll
    for (int m = 0; m < kM; ++m) reader.read(a[m], m, k16, offset);
  };
}
/// The same for operand B, every kWays-th 16 columns from the kFirst-th 16 on.
template <int kWays = 1, int kFirst = 0, class Reader>
__device__ inline auto columns_of(const Reader& reader, uint32_t offset = 0) {
  return [reader, offset](Fragment& b, int n, int k16) { reader.read(b, (kFirst + n) * kWays, k16, offset); };
}

/// Calls f(accumulator, index) for all accumulators of a thread.
template <int kM, int kN, class F>
__device__ inline void each_sum(Accumulators<kM, kN>& sums, const F& f) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
#pragma unroll
      for (int x = 0; x < 4; ++x) f(sums[i][j][x], (i * kN + j) * 4 + x);
    }
  }
}

/// Writes `factor` times accumulators as rows of a gradient, from row `first_row` of the tile's document on; skips
/// elements beyond document and head.
template <int kWays, int kFirst = 0, int kM, int kN>
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
        const int element = column_of_tile<kWays>(way, 2 * kFirst + j) + accumulator_column();
        if (element >= head_dim) continue;
        gradient.store_pair(begin + element, factor * sums[i][j][2 * half], factor * sums[i][j][2 * half + 1]);
      }
    }
  }
}

/// A CTA's tile and where its operands are in shared memory.
template <class Shape>
struct Work {
  AttentionTile tile;
  int kv_head;
  char* memory;
  uint32_t begin;  ///< shared address of `memory`

  /// The barriers of stage or pair i.
  __device__ uint32_t barrier(int i) const { return begin + static_cast<uint32_t>(Shape::kBarriersBegin + 8 * i); }
  __device__ uint32_t queries_full(int stage) const { return barrier(stage); }
  __device__ uint32_t queries_empty(int stage) const { return barrier(Shape::kStages + stage); }
  __device__ uint32_t douts_full(int stage) const { return barrier(2 * Shape::kStages + stage); }
  __device__ uint32_t douts_empty(int stage) const { return barrier(3 * Shape::kStages + stage); }
  __device__ uint32_t probabilities_full(int pair) const { return barrier(4 * Shape::kStages + pair); }
  __device__ uint32_t probabilities_empty(int pair) const { return barrier(4 * Shape::kStages + Shape::kPairs + pair); }
  __device__ uint32_t scores_full() const { return barrier(4 * Shape::kStages + 2 * Shape::kPairs); }
  __device__ uint32_t scores_empty() const { return barrier(4 * Shape::kStages + 2 * Shape::kPairs + 1); }

  __device__ void init_barriers() const {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      barrier_init(queries_full(stage), Shape::kGroupThreads);
      barrier_init(queries_empty(stage), 2 * Shape::kPairs);
      barrier_init(douts_full(stage), Shape::kGroupThreads);
      barrier_init(douts_empty(stage), 2 * Shape::kPairs);
    }
    for (int pair = 0; pair < Shape::kPairs; ++pair) {
      barrier_init(probabilities_full(pair), 1);
      barrier_init(probabilities_empty(pair), 1);
    }
    barrier_init(scores_full(), Shape::kPairs);
    barrier_init(scores_empty(), Shape::kPairs);
  }

  __device__ typename Shape::Keys keys() const { return {begin}; }
  __device__ typename Shape::Values values() const { return {begin + Shape::Keys::kBytes}; }
  __device__ typename Shape::Queries queries() const { return {begin + Shape::kQueriesBegin}; }
  __device__ typename Shape::Douts douts() const { return {begin + Shape::kDoutsBegin}; }
  __device__ typename Shape::ScoreGradients score_gradients() const { return {begin + Shape::kScoresBegin}; }
  /// A pair's probabilities, as fragments of operand A: [key tiles, queries / 16, lanes].
  __device__ uint4* probabilities(int pair) const {
    return reinterpret_cast<uint4*>(memory + Shape::kProbabilitiesBegin +
                                    pair * (Shape::kWarpKeys * Shape::kQueries * 2)) +
           lane_of_warp();
  }
  __device__ const float* shifts(int stage) const {
    return reinterpret_cast<const float*>(memory + Shape::kShiftsBegin + stage * Shape::kStatsBytes);
  }
  __device__ const float* deltas(int stage) const {
    return reinterpret_cast<const float*>(memory + Shape::kDeltasBegin + stage * Shape::kStatsBytes);
  }

  /// Whether any query of the step attends to the keys from `first_key` on of a warp.
  __device__ bool visible(const QueryStep& step, int first_key, int window) const {
    return first_key < tile.length && first_key < step.query + Shape::kQueries &&
           (window == 0 || step.query - (first_key + Shape::kWarpKeys - 1) < window);
  }
};

__device__ inline void arrive_as_warp(uint32_t barrier) {
  __syncwarp();
  if (lane_of_warp() == 0) barrier_arrive(barrier);
}

/// Copies kQueries float32 to shared memory with the first threads of a group.
template <int kQueries>
__device__ inline void copy_stats(uint32_t to, const float* from, int thread) {
  if (thread < kQueries / 4) cp_async_16(to + static_cast<uint32_t>(thread) * 16, from + 4 * thread, true);
}

/// Warps 0 to kPairs - 1: S, P and dV. They load dO.
template <class Shape>
__device__ inline void compute_dv(const BackwardArgs& args, const Work<Shape>& work) {
  constexpr int kQueries = Shape::kQueries, kStages = Shape::kStages, kM = Shape::kKeyTiles, kQ16 = kQueries / 16;
  const AttentionTile& tile = work.tile;
  const int thread = static_cast<int>(threadIdx.x), pair = thread / 32;
  QuerySteps<kQueries, Shape::kKeys> at(tile, args.window, args.num_heads / args.num_kv_heads), next = at;
  const int count = at.count;
  const auto load = [&](int step) {
    const QueryStep record = next.record(work.kv_head);
    next.advance();
    const int stage = step % kStages;
    const HeadRows rows(args.dout, tile.begin, record.head, args.num_heads, args.v_head_dim);
    copy_rows<kQueries, Shape::kValueDim, Shape::kGroupThreads>(
        {work.douts().address + static_cast<uint32_t>(stage * Shape::Douts::kBytes)}, rows, record.query, tile.length);
    copy_stats<kQueries>(work.begin + static_cast<uint32_t>(Shape::kDeltasBegin + stage * Shape::kStatsBytes),
                         args.deltas + record.head * args.stats_rows + tile.stats + record.query, thread);
    barrier_arrive_after_copies(work.douts_full(stage));
  };
  for (int i = 0; i < min(count, kStages); ++i) load(i);

  const int key_row = pair * Shape::kWarpKeys, first_key = tile.first + key_row;
  const FragmentReader<typename Shape::Keys, false, true> scores_k(work.keys(), key_row);
  const FragmentReader<typename Shape::Queries, false, false> scores_q(work.queries(), 0);
  const FragmentReader<typename Shape::Douts, true, false> dv_dout(work.douts(), 0);
  uint4* const exchange = work.probabilities(pair);
  Accumulators<kM, Shape::kValueDim / 8> dv;
  clear(dv);
  const float scale_log2 = args.scale * kLog2E;
  uint32_t exchanges = 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i, at.advance()) {
    const QueryStep step = at.record(work.kv_head);
    const int stage = i % kStages;
    const uint32_t parity = static_cast<uint32_t>(i / kStages) & 1;
    const bool visible = work.visible(step, first_key, args.window);
    barrier_poll(work.queries_full(stage), parity);
    Fragment p[kM][kQ16];
    if (visible) {
      Accumulators<kM, kQueries / 8> s;
      clear(s);
      add_product<Shape::kDim / 16>(s, rows_of<kM>(scores_k),
                                    columns_of(scores_q, static_cast<uint32_t>(stage * Shape::Queries::kBytes)));
      if (first_key + Shape::kWarpKeys - 1 > step.query ||
          (args.window > 0 && step.query + kQueries - 1 - first_key >= args.window)) {
        const int distance = step.query + accumulator_column() - (first_key + accumulator_row());
        const int window = args.window > 0 ? args.window : INT32_MAX;
        each_sum(s, [&](float& score, int index) {
          const int m = index / (kQueries / 2), j = index / 4 % (kQueries / 8), x = index % 4;
          const int of_score = distance + 8 * j + x % 2 - 16 * m - 8 * (x / 2);
          if (of_score < 0 || of_score >= window) score = -INFINITY;
        });
      }
      const float* shifts = work.shifts(stage) + accumulator_column();
#pragma unroll
      for (int j = 0; j < kQueries / 8; ++j) {
        const float2 shift = *reinterpret_cast<const float2*>(shifts + 8 * j);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          float(&quad)[4] = s[m][j];
          p[m][j / 2][j % 2 * 2] = pack_bf16(exp2_approximate(fmaf(scale_log2, quad[0], shift.x)),
                                             exp2_approximate(fmaf(scale_log2, quad[1], shift.y)));
          p[m][j / 2][j % 2 * 2 + 1] = pack_bf16(exp2_approximate(fmaf(scale_log2, quad[2], shift.x)),
                                                 exp2_approximate(fmaf(scale_log2, quad[3], shift.y)));
        }
      }
    }
    arrive_as_warp(work.queries_empty(stage));
    if (visible) {
      barrier_poll(work.probabilities_empty(pair), (exchanges & 1) ^ 1);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int k16 = 0; k16 < kQ16; ++k16) {
          const Fragment& fragment = p[m][k16];
          exchange[(m * kQ16 + k16) * 32] = {fragment[0], fragment[1], fragment[2], fragment[3]};
        }
      }
      arrive_as_warp(work.probabilities_full(pair));
      ++exchanges;
    }
    barrier_poll(work.douts_full(stage), parity);
    if (visible) add_gradient(dv, p, columns_of(dv_dout, static_cast<uint32_t>(stage * Shape::Douts::kBytes)));
    arrive_as_warp(work.douts_empty(stage));
    if (i + kStages < count) {
      barrier_poll(work.douts_empty(stage), parity);
      load(i + kStages);
    }
  }
  store_gradient<1>(args.dv, dv, 1.0f, tile, first_key, 0, work.kv_head, args.num_kv_heads, args.v_head_dim);
}

/// The other warps: dP, dS, dK and dQ. They load Q.
template <class Shape>
__device__ inline void compute_dk_and_dq(const BackwardArgs& args, const Work<Shape>& work) {
  constexpr int kQueries = Shape::kQueries, kStages = Shape::kStages, kM = Shape::kKeyTiles, kQ16 = kQueries / 16;
  constexpr int kGroup = Shape::kGroupThreads;
  const AttentionTile& tile = work.tile;
  const int thread = static_cast<int>(threadIdx.x) - kGroup, pair = thread / 32;
  QuerySteps<kQueries, Shape::kKeys> at(tile, args.window, args.num_heads / args.num_kv_heads), next = at;
  const int count = at.count;
  const auto load = [&](int step) {
    const QueryStep record = next.record(work.kv_head);
    next.advance();
    const int stage = step % kStages;
    const HeadRows rows(args.q, tile.begin, record.head, args.num_heads, args.head_dim);
    copy_rows<kQueries, Shape::kDim, kGroup>(
        {work.queries().address + static_cast<uint32_t>(stage * Shape::Queries::kBytes)}, rows, record.query,
        tile.length, kGroup);
    copy_stats<kQueries>(work.begin + static_cast<uint32_t>(Shape::kShiftsBegin + stage * Shape::kStatsBytes),
                         args.shifts + record.head * args.stats_rows + tile.stats + record.query, thread);
    barrier_arrive_after_copies(work.queries_full(stage));
  };
  for (int i = 0; i < min(count, kStages); ++i) load(i);

  const int key_row = pair * Shape::kWarpKeys, first_key = tile.first + key_row;
  const int query_row = pair / Shape::kDimWays * (kQueries / Shape::kQueryWays), dim_way = pair % Shape::kDimWays;
  const auto gradients = work.score_gradients();
  const FragmentReader<typename Shape::Values, false, true> scores_v(work.values(), key_row);
  const FragmentReader<typename Shape::Douts, false, false> scores_dout(work.douts(), 0);
  const FragmentReader<typename Shape::Queries, true, false> dk_q(work.queries(), 0);
  const FragmentReader<typename Shape::ScoreGradients, true, true> dq_ds(gradients, query_row);
  const FragmentReader<typename Shape::Keys, true, false> dq_k(work.keys(), 16 * dim_way);
  const uint4* const exchange = work.probabilities(pair);
  Accumulators<kM, Shape::kDim / 8> dk;
  clear(dk);
  uint32_t exchanges = 0;
  int* shown = nullptr;  // the turn to publish once the writes before it have been performed
  int shown_turn = 0;
  const auto publish = [&] {
    __syncwarp();
    if (shown != nullptr && lane_of_warp() == 0) store_release(shown, shown_turn);
    shown = nullptr;
  };
#pragma unroll 1
  for (int i = 0; i < count; ++i, at.advance()) {
    const QueryStep step = at.record(work.kv_head);
    const int stage = i % kStages;
    const uint32_t parity = static_cast<uint32_t>(i / kStages) & 1, step_parity = static_cast<uint32_t>(i) & 1;
    const bool visible = work.visible(step, first_key, args.window);
    barrier_poll(work.douts_full(stage), parity);
    Fragment ds[kM][kQ16];
    if (visible) {
      Accumulators<kM, kQueries / 8> dp;
      clear(dp);
      add_product<Shape::kValueDim / 16>(dp, rows_of<kM>(scores_v),
                                         columns_of(scores_dout, static_cast<uint32_t>(stage * Shape::Douts::kBytes)));
      publish();
      barrier_poll(work.probabilities_full(pair), exchanges & 1);
      const float* deltas = work.deltas(stage) + accumulator_column();
#pragma unroll
      for (int k16 = 0; k16 < kQ16; ++k16) {
        const float2 low = *reinterpret_cast<const float2*>(deltas + 16 * k16);
        const float2 high = *reinterpret_cast<const float2*>(deltas + 16 * k16 + 8);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          const uint4 p = exchange[(m * kQ16 + k16) * 32];
          const auto gradient = [](uint32_t pair_of_p, float x, float y, float2 delta) {
            const float2 probability = unpack_bf16(pair_of_p);
            return pack_bf16(probability.x * (x - delta.x), probability.y * (y - delta.y));
          };
          const float(&first)[4] = dp[m][2 * k16], (&second)[4] = dp[m][2 * k16 + 1];
          ds[m][k16][0] = gradient(p.x, first[0], first[1], low);
          ds[m][k16][1] = gradient(p.y, first[2], first[3], low);
          ds[m][k16][2] = gradient(p.z, second[0], second[1], high);
          ds[m][k16][3] = gradient(p.w, second[2], second[3], high);
        }
      }
      arrive_as_warp(work.probabilities_empty(pair));
      ++exchanges;
    } else {
      publish();
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int k16 = 0; k16 < kQ16; ++k16) {
#pragma unroll
          for (int x = 0; x < 4; ++x) ds[m][k16][x] = 0;
        }
      }
    }
    arrive_as_warp(work.douts_empty(stage));
    barrier_poll(work.scores_empty(), step_parity ^ 1);
    const uint32_t line =
        gradients.unit(recomputed(key_row) + accumulator_row(), 0) + static_cast<uint32_t>(accumulator_column() * 2);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int k16 = 0; k16 < kQ16; ++k16) {
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          // Lines of a multiple of 8 apart have the same permutation.
          shared_store_32((line ^ static_cast<uint32_t>((2 * k16 + x / 2) * 16)) +
                              static_cast<uint32_t>((16 * m + x % 2 * 8) * kQueries * 2),
                          ds[m][k16][x]);
        }
      }
    }
    arrive_as_warp(work.scores_full());

    int* turn = args.turns + (step.head * args.query_blocks + step.block) * Shape::kPairs + pair;
    barrier_poll(work.queries_full(stage), parity);
    if (visible) add_gradient(dk, ds, columns_of(dk_q, static_cast<uint32_t>(stage * Shape::Queries::kBytes)));
    arrive_as_warp(work.queries_empty(stage));
    if (i + kStages < count) {
      barrier_poll(work.queries_empty(stage), parity);
      load(i + kStages);
    }
    const int seen = step.turn > 0 ? load_relaxed(turn) : 0;
    barrier_poll(work.scores_full(), step_parity);
    float* partial = args.partial_dq + (step.head * args.query_blocks + step.block) * (kQueries * Shape::kDim) + thread;
    const auto add_part = [&](auto part) {
      constexpr int kPart = decltype(part)::value, kTiles = Shape::kDim / Shape::kDimWays / 8 / Shape::kDqParts;
      Accumulators<Shape::kQueryTiles, kTiles> dq;
      float* const to = partial + kPart * (4 * Shape::kQueryTiles * kTiles * kGroup);
      clear(dq);
      add_product<Shape::kKeys / 16>(dq, rows_of<Shape::kQueryTiles>(dq_ds),
                                     columns_of<Shape::kDimWays, kPart * kTiles / 2>(dq_k));
      if (kPart + 1 == Shape::kDqParts) arrive_as_warp(work.scores_empty());
      if (kPart == 0 && step.turn > 0 && !__all_sync(0xffffffffu, seen == step.turn)) {
        while (load_acquire(turn) != step.turn) {
        }
        __syncwarp();
      }
      if (step.turn == step.turns - 1) {
        if (step.turn > 0) each_sum(dq, [&](float& sum, int index) { sum += __ldcg(to + index * kGroup); });
        store_gradient<Shape::kDimWays, kPart * kTiles / 2>(args.dq, dq, args.scale, tile, step.query + query_row,
                                                            dim_way, step.head, args.num_heads, args.head_dim);
      } else if (step.turn == 0) {
        each_sum(dq, [&](float& sum, int index) { __stcg(to + index * kGroup, sum); });
      } else {
        each_sum(dq, [&](float& sum, int index) { atomicAdd(to + index * kGroup, sum); });
      }
    };
    add_part(std::integral_constant<int, 0>{});
    if constexpr (Shape::kDqParts > 1) add_part(std::integral_constant<int, 1>{});
    if (step.turn < step.turns - 1) shown = turn, shown_turn = step.turn + 1;
  }
  publish();
  store_gradient<1>(args.dk, dk, args.scale, tile, first_key, 0, work.kv_head, args.num_kv_heads, args.head_dim);
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kCtas)
    backward_kernel(const __grid_constant__ BackwardArgs args) {
  extern __shared__ __align__(128) char memory[];
  // CTAs take items in list order, so a CTA only waits for items that have been started.
  __shared__ int taken;
  constexpr int kParts = kAttentionRows / Shape::kKeys;  // parts of a tile of the list
  Work<Shape> work{.tile = {}, .kv_head = 0, .memory = memory, .begin = shared_address(memory)};
  if (threadIdx.x == 0) {
    taken = atomicAdd(args.counter, 1);
    work.init_barriers();
  }
  __syncthreads();
  const int in_tile = taken % (args.num_kv_heads * kParts);
  work.kv_head = in_tile % args.num_kv_heads;
  work.tile = args.tiles[taken / (args.num_kv_heads * kParts)];
  work.tile.first += in_tile / args.num_kv_heads * Shape::kKeys;
  const AttentionTile& tile = work.tile;
  if (tile.first >= tile.length) return;
  copy_rows<Shape::kKeys, Shape::kDim, Shape::kThreads>(
      work.keys(), HeadRows(args.k, tile.begin, work.kv_head, args.num_kv_heads, args.head_dim), tile.first,
      tile.length);
  copy_rows<Shape::kKeys, Shape::kValueDim, Shape::kThreads>(
      work.values(), HeadRows(args.v, tile.begin, work.kv_head, args.num_kv_heads, args.v_head_dim), tile.first,
      tile.length);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  if (threadIdx.x < Shape::kGroupThreads) {
    compute_dv(args, work);
  } else {
    compute_dk_and_dq(args, work);
  }
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
  with_attention_shape<BackwardShape<64, 64, 2, 64, 2>, BackwardShape<128, 128, 2, 64, 2>,
                       BackwardShape<128, 128, 2, 32, 1>, BackwardShape<192, 128, 1, 64, 2>,
                       BackwardShape<192, 128, 1, 64, 1>, BackwardShape<256, 256, 1, 64, 1>,
                       BackwardShape<256, 256, 1, 32, 1, 2>>(options.head_dim, options.v_head_dim,
                                                             kernel_tiers(context).shared_memory, f);
}

}  // namespace

BackwardScratch::BackwardScratch(const Context& context, ArenaScope& memory, const AttentionArgs& args)
    : tiles(memory, args), stats(memory, args) {
  const int64_t tokens = args.q.shape[0], heads = args.options.num_heads;
  with_backward_shape(context, args.options, [&](auto shape) {
    using Shape = decltype(shape);
    query_blocks = tokens / Shape::kQueries;
    turns = memory.take({heads, query_blocks, Shape::kPairs}, DType::kI32);
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
