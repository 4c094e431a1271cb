// The backward pass of attention on tier sm80: a CTA owns keys of one key-value head and visits the queries that attend
// to them, kQueries of one head at a time; five products per step. Half of its warps hold dV, the other half dK. A pair
// of one warp of each has the same keys:
//
//   warp of dV     S = Q Kᵀ; P to the other warp of the pair; dQ; dV += Pᵀ dO, with P in registers
//   warp of dK     dP = dO Vᵀ; dS to shared memory; dK += dSᵀ Q, with dS in registers; loads of Q and dO; dQ
//
// dQ = dS K, with dS of all pairs, is divided among all warps, so that each half of them has two and a half of the five
// products. With two stages, a warp of dV forms S of the next step before its part of dQ: the other warps then rarely
// wait for P.
//
// Warps wait for each other at barriers of what they need (stages, P of a pair, dS), and nowhere for the whole CTA:
// while some are at exponentials or at a turn, tensor cores have the products of others.
//
// A query's dq is a sum over CTAs, which add in document order (turns): the first one stores its part, others add to it
// in memory, and the last one reads the sum and writes dq. The previous tile of a document comes earlier in the list
// and visits the same queries in the same order, so a CTA rarely waits, and only for CTAs that have started. The turn
// is read before the wait for dS, so that the read costs no time. One warp of dV publishes it, a step later, for all:
// warps of dV take turns at that, since the fence before it takes a seventh of a step.
//
// Registers (ptxas 13.0): up to 255 of 255; at most 12 bytes are spilled, 84 on 8.9 by one shape of heads of 256.
//
// Measured on one H100 limited to this tier, 2026-11-26, `hone bench ops --tier sm80 --op attention`, causal, model
// TFLOP/s: 4 x 4096, 32/4 heads of 128: 290 (237 with the 99 KB of Ada; FlashAttention-2 in torch 250 on the same GPU);
// 1 x 16384: 318; heads of 64: 239 (200); 192/128: 157; 256: 234 (213). Tensor cores are busy half of
// the time; each warp has some 320 MMAs a step, one in 9 clocks. What was tried is in docs/kernels.md. Raw:
// bench/results/h100-attention-sm80-2026-11-26.txt. One H200, 2026-11-29, 4 x 4096, 128/128 heads of 192 and 128, with
// two key-value heads at a time (attention_order.h): 148 -> 208 (four: 217; eight: 213). Raw:
// bench/results/h200-attention-order-2026-11-29.txt.
#include "kernels/cuda/tiers.h"
#include "ops/attention/sm80/attention_cuda.h"

namespace hone::cuda::sm80 {

namespace {

/// Lanes that arrive at a barrier for their warp. racecheck takes the accesses of each lane that does not arrive for
/// hazards; it does not follow __syncwarp().
#ifdef HONE_RACECHECK
constexpr int kArrivingLanes = 32;
#else
constexpr int kArrivingLanes = 1;
#endif

/// Heads of up to kDimOf elements, values of up to kValueDimOf; kPairs pairs of warps with 16 kKeyTilesOf keys each;
/// kQueriesOf queries per step, of which kStagesOf steps are in shared memory. With kSlicesOf slices of their columns,
/// a kernel computes one of each gradient.
template <int kDimOf, int kValueDimOf, int kKeyTilesOf, int kQueriesOf, int kStagesOf, int kPairsOf = 4,
          int kSlicesOf = 1>
struct BackwardShape {
  static constexpr int kDim = kDimOf, kValueDim = kValueDimOf, kKeyTiles = kKeyTilesOf, kQueries = kQueriesOf;
  static constexpr int kStages = kStagesOf, kPairs = kPairsOf, kGroupThreads = 32 * kPairs;
  static constexpr int kSlices = kSlicesOf, kDimSlice = kDim / kSlices, kValueSlice = kValueDim / kSlices;
  static constexpr int kThreads = 2 * kGroupThreads, kCtas = 1;
  static constexpr int kWarpKeys = 16 * kKeyTiles, kKeys = kPairs * kWarpKeys;
  static_assert(kAttentionRows % kKeys == 0 && kKeys % kQueries == 0);
  // Division of dQ [queries, dim], or of its slice, among all warps.
  static constexpr int kQueryWays = kQueries >= 64 ? 2 : 1, kDimWays = 2 * kPairs / kQueryWays;
  static constexpr int kQueryTiles = kQueries / kQueryWays / 16, kDimTiles = kDimSlice / kDimWays / 8;
  static_assert(kDimWays % 4 == 0 && kDimTiles % 2 == 0 && kQueryTiles <= 2);  // FragmentReader, add_product

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
  // Barriers: of stages, of pairs, of dS; each as "full", then "empty"; of written parts of dQ, of even and odd steps.
  static constexpr int kBarriers = 4 * kStages + 2 * kPairs + 4;
  static constexpr int kBytes = kBarriersBegin + 8 * kBarriers;
};

struct BackwardArgs {
  TileOrder order;
  int items;
  const __nv_bfloat16 *q, *k, *v, *dout;
  const float *shifts, *deltas;  // [Hq, stats_rows]
  int64_t stats_rows;
  int* turns;         // [Hq, query_blocks]
  float* partial_dq;  // [Hq, query_blocks, …]
  int64_t query_blocks;
  int num_heads, num_kv_heads, head_dim, v_head_dim;
  float scale;
  int window;  // 0: none
  Gradient dq, dk, dv;
  int slice;  // which of the gradients' columns

  /// The first column of the slice of Q and K, and of V.
  template <class Shape>
  __device__ int first_column() const {
    return Shape::kSlices > 1 ? slice * Shape::kDimSlice : 0;
  }
  template <class Shape>
  __device__ int first_value() const {
    return Shape::kSlices > 1 ? slice * Shape::kValueSlice : 0;
  }
};

/// kWays warps share columns: this one has the 16 columns from 16 · way on, then every kWays-th 16. Returns the first
/// column of its n-tile j.
template <int kWays>
__device__ inline int column_of_tile(int way, int j) {
  return (j / 2 * kWays + way) * 16 + j % 2 * 8;
}

/// d += a b over kK16 steps of k. read_a(fragments, k16) and read_b(fragment, n, k16) load operands; each is called
/// one fragment (a: one step) before the products that need it.
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
/// The same for operand B, every kWays-th 16 columns.
template <int kWays = 1, class Reader>
__device__ inline auto columns_of(const Reader& reader, uint32_t offset = 0) {
  return [reader, offset](Fragment& b, int n, int k16) { reader.read(b, n * kWays, k16, offset); };
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

/// Writes `factor` times accumulators as rows of a gradient, from row `first_row` of the tile's document and column
/// `first_column` of the head on; skips elements beyond document and head.
template <int kWays, int kM, int kN>
__device__ inline void store_gradient(const Gradient& gradient, const Accumulators<kM, kN>& sums, float factor,
                                      const AttentionTile& tile, int first_row, int first_column, int way, int head,
                                      int heads, int head_dim) {
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
        const int element = first_column + column_of_tile<kWays>(way, j) + accumulator_column();
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
  /// A warp may write its part of a step before another one has written that of the step before, but is never two steps
  /// ahead (it needs the other's arrival at scores_empty). So parts of even and odd steps have barriers of their own.
  __device__ uint32_t dq_written(uint32_t odd_step) const {
    return barrier(4 * Shape::kStages + 2 * Shape::kPairs + 2 + static_cast<int>(odd_step));
  }

  __device__ void init_barriers() const {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      barrier_init(queries_full(stage), Shape::kGroupThreads);
      barrier_init(queries_empty(stage), 2 * Shape::kPairs * kArrivingLanes);
      barrier_init(douts_full(stage), Shape::kGroupThreads);
      barrier_init(douts_empty(stage), 2 * Shape::kPairs * kArrivingLanes);
    }
    for (int pair = 0; pair < Shape::kPairs; ++pair) {
      barrier_init(probabilities_full(pair), kArrivingLanes);
      barrier_init(probabilities_empty(pair), kArrivingLanes);
    }
    barrier_init(scores_full(), Shape::kPairs * kArrivingLanes);
    barrier_init(scores_empty(), 2 * Shape::kPairs * kArrivingLanes);
    barrier_init(dq_written(0), 2 * Shape::kPairs * kArrivingLanes);
    barrier_init(dq_written(1), 2 * Shape::kPairs * kArrivingLanes);
  }

  __device__ typename Shape::Keys keys() const { return {begin}; }
  __device__ typename Shape::Values values() const { return {begin + Shape::Keys::kBytes}; }
  __device__ typename Shape::Queries queries(int stage) const {
    return {begin + static_cast<uint32_t>(Shape::kQueriesBegin + stage * Shape::Queries::kBytes)};
  }
  __device__ typename Shape::Douts douts(int stage) const {
    return {begin + static_cast<uint32_t>(Shape::kDoutsBegin + stage * Shape::Douts::kBytes)};
  }
  __device__ typename Shape::ScoreGradients score_gradients() const { return {begin + Shape::kScoresBegin}; }
  /// A pair's probabilities, as fragments of operand A: [key tiles, queries / 16, lanes].
  __device__ uint4* probabilities(int pair) const {
    return reinterpret_cast<uint4*>(memory + Shape::kProbabilitiesBegin +
                                    pair * (Shape::kWarpKeys * Shape::kQueries * 2)) +
           lane_of_warp();
  }
  __device__ uint32_t shifts_address(int stage) const {
    return begin + static_cast<uint32_t>(Shape::kShiftsBegin + stage * Shape::kStatsBytes);
  }
  __device__ uint32_t deltas_address(int stage) const {
    return begin + static_cast<uint32_t>(Shape::kDeltasBegin + stage * Shape::kStatsBytes);
  }
  __device__ const float* shifts(int stage) const {
    return reinterpret_cast<const float*>(memory + (shifts_address(stage) - begin));
  }
  __device__ const float* deltas(int stage) const {
    return reinterpret_cast<const float*>(memory + (deltas_address(stage) - begin));
  }

  /// Whether any query of the step attends to the keys from `first_key` on of a warp.
  __device__ bool visible(const QueryStep& step, int first_key, int window) const {
    return first_key < tile.length && first_key < step.query + Shape::kQueries &&
           (window == 0 || step.query - (first_key + Shape::kWarpKeys - 1) < window);
  }
};

__device__ inline void arrive_as_warp(uint32_t barrier) {
  __syncwarp();
  if (kArrivingLanes == 32 || lane_of_warp() == 0) barrier_arrive(barrier);
}

/// Copies kQueries float32 to shared memory with the first threads of a group.
template <int kQueries>
__device__ inline void copy_stats(uint32_t to, const float* from, int thread) {
  if (thread < kQueries / 4) cp_async_16(to + static_cast<uint32_t>(thread) * 16, from + 4 * thread, true);
}

/// A warp's part of dQ, [16 kQueryTiles queries, 8 kDimTiles elements of the head], over all keys of the CTA.
template <class Shape>
class DqPart {
 public:
  __device__ DqPart(const BackwardArgs& args, const Work<Shape>& work)
      : args_(args),
        work_(work),
        warp_(static_cast<int>(threadIdx.x) / 32),
        ds_(work.score_gradients(), row()),
        keys_(work.keys(), args.first_column<Shape>() + 16 * way()) {}

  /// Adds the part of step `index` once all of its dS are in shared memory.
  __device__ void add(const QueryStep& step, int index) const {
    const uint32_t odd = static_cast<uint32_t>(index) & 1;
    const int64_t block = step.head * args_.query_blocks + step.block;
    const int* const turn = args_.turns + block;
    float* const partial = args_.partial_dq + block * (Shape::kQueries * Shape::kDimSlice) + threadIdx.x;
    const int seen = step.turn > 0 ? load_relaxed(turn) : 0;
    barrier_poll(work_.scores_full(), odd);
    Accumulators<Shape::kQueryTiles, Shape::kDimTiles> dq;
    clear(dq);
    add_product<Shape::kKeys / 16>(dq, rows_of<Shape::kQueryTiles>(ds_), columns_of<Shape::kDimWays>(keys_));
    arrive_as_warp(work_.scores_empty());
    // After a relaxed read that shows the turn no fence is needed: sums are read and added in L2 only, after the
    // branch.
    if (step.turn > 0 && !__all_sync(0xffffffffu, seen == step.turn)) {
      while (load_acquire(turn) != step.turn) {
      }
      __syncwarp();
    }
    if (step.turn == step.turns - 1) {
      if (step.turn > 0) each_sum(dq, [&](float& sum, int i) { sum += __ldcg(partial + i * Shape::kThreads); });
      store_gradient<Shape::kDimWays>(args_.dq, dq, args_.scale, work_.tile, step.query + row(),
                                      args_.first_column<Shape>(), way(), step.head, args_.num_heads, args_.head_dim);
    } else if (step.turn == 0) {
      each_sum(dq, [&](float& sum, int i) { __stcg(partial + i * Shape::kThreads, sum); });
    } else {
      each_sum(dq, [&](float& sum, int i) { atomicAdd(partial + i * Shape::kThreads, sum); });
    }
    arrive_as_warp(work_.dq_written(odd));
  }

 private:
  __device__ int row() const { return warp_ / Shape::kDimWays * (16 * Shape::kQueryTiles); }
  __device__ int way() const { return warp_ % Shape::kDimWays; }

  const BackwardArgs& args_;
  const Work<Shape>& work_;
  int warp_;
  FragmentReader<typename Shape::ScoreGradients, true, true> ds_;
  FragmentReader<typename Shape::Keys, true, false> keys_;
};

/// Warps 0 to kPairs - 1: S, P, dV and their part of dQ. With two stages, S of a step precedes dQ of the step before,
/// so that the other warps have P when they have dP.
template <class Shape>
__device__ inline void compute_dv(const BackwardArgs& args, const Work<Shape>& work) {
  constexpr int kQueries = Shape::kQueries, kStages = Shape::kStages, kM = Shape::kKeyTiles, kQ16 = kQueries / 16;
  const AttentionTile& tile = work.tile;
  const int pair = static_cast<int>(threadIdx.x) / 32;
  QuerySteps<kQueries, Shape::kKeys> at(tile, args.window, args.num_heads / args.num_kv_heads), before = at;
  const int count = at.count;
  const int key_row = pair * Shape::kWarpKeys, first_key = tile.first + key_row;
  const FragmentReader<typename Shape::Keys, false, true> scores_k(work.keys(), key_row);
  const FragmentReader<typename Shape::Queries, false, false> scores_q(work.queries(0), 0);
  const FragmentReader<typename Shape::Douts, true, false> dv_dout(work.douts(0), args.first_value<Shape>());
  uint4* const exchange = work.probabilities(pair);
  const DqPart<Shape> dq(args, work);
  Accumulators<kM, Shape::kValueSlice / 8> dv;
  clear(dv);
  const float scale_log2 = args.scale * kLog2E;
  uint32_t exchanges = 0;
  const auto add_dq = [&](int i) { dq.add(before.record(work.kv_head), i); };
  // One of these warps publishes the turn of step i once all warps have written their parts.
  const auto publish = [&](int i) {
    const QueryStep step = before.record(work.kv_head);
    before.advance();
    if (i % Shape::kPairs != pair || step.turn + 1 == step.turns) return;
    barrier_poll(work.dq_written(static_cast<uint32_t>(i) & 1), static_cast<uint32_t>(i / 2) & 1);
    if (lane_of_warp() == 0) store_release(args.turns + step.head * args.query_blocks + step.block, step.turn + 1);
  };
#pragma unroll 1
  for (int i = 0; i < count; ++i, at.advance()) {
    const QueryStep step = at.record(work.kv_head);
    const int stage = i % kStages;
    const uint32_t parity = static_cast<uint32_t>(i / kStages) & 1;
    const bool visible = work.visible(step, first_key, args.window);
    if (kStages == 1 && i > 0) add_dq(i - 1);
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
    if (kStages > 1 && i > 0) add_dq(i - 1);
    barrier_poll(work.douts_full(stage), parity);
    if (visible) add_gradient(dv, p, columns_of(dv_dout, static_cast<uint32_t>(stage * Shape::Douts::kBytes)));
    arrive_as_warp(work.douts_empty(stage));
    if (i > 0) publish(i - 1);
  }
  add_dq(count - 1);
  publish(count - 1);
  store_gradient<1>(args.dv, dv, 1.0f, tile, first_key, args.first_value<Shape>(), 0, work.kv_head, args.num_kv_heads,
                    args.v_head_dim);
}

/// The other warps: dP, dS, dK and their part of dQ. They load Q and dO.
template <class Shape>
__device__ inline void compute_dk(const BackwardArgs& args, const Work<Shape>& work) {
  constexpr int kQueries = Shape::kQueries, kStages = Shape::kStages, kM = Shape::kKeyTiles, kQ16 = kQueries / 16;
  constexpr int kGroup = Shape::kGroupThreads;
  const AttentionTile& tile = work.tile;
  const int thread = static_cast<int>(threadIdx.x) - kGroup, pair = thread / 32;
  QuerySteps<kQueries, Shape::kKeys> at(tile, args.window, args.num_heads / args.num_kv_heads), next = at;
  const int count = at.count;
  // Copies rows and their statistic to a stage.
  const auto load = [&](const auto& to, const HeadRows& rows, uint32_t to_stats, const float* stats,
                        const QueryStep& step, uint32_t full) {
    copy_rows<kGroup>(to, rows, step.query, tile.length, kGroup);
    copy_stats<kQueries>(to_stats, stats + step.head * args.stats_rows + tile.stats + step.query, thread);
    barrier_arrive_after_copies(full);
  };
  const auto load_queries = [&](int stage, const QueryStep& step) {
    load(work.queries(stage), HeadRows(args.q, tile.begin, step.head, args.num_heads, args.head_dim),
         work.shifts_address(stage), args.shifts, step, work.queries_full(stage));
  };
  const auto load_douts = [&](int stage, const QueryStep& step) {
    load(work.douts(stage), HeadRows(args.dout, tile.begin, step.head, args.num_heads, args.v_head_dim),
         work.deltas_address(stage), args.deltas, step, work.douts_full(stage));
  };
  for (int i = 0; i < min(count, kStages); ++i, next.advance()) {
    const QueryStep step = next.record(work.kv_head);
    load_queries(i, step);
    load_douts(i, step);
  }

  const int key_row = pair * Shape::kWarpKeys, first_key = tile.first + key_row;
  const auto gradients = work.score_gradients();
  const FragmentReader<typename Shape::Values, false, true> scores_v(work.values(), key_row);
  const FragmentReader<typename Shape::Douts, false, false> scores_dout(work.douts(0), 0);
  const FragmentReader<typename Shape::Queries, true, false> dk_q(work.queries(0), args.first_column<Shape>());
  const uint4* const exchange = work.probabilities(pair);
  const DqPart<Shape> dq(args, work);
  Accumulators<kM, Shape::kDimSlice / 8> dk;
  clear(dk);
  uint32_t exchanges = 0;
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
          // Lines a multiple of 8 apart have the same permutation.
          shared_store_32((line ^ static_cast<uint32_t>((2 * k16 + x / 2) * 16)) +
                              static_cast<uint32_t>((16 * m + x % 2 * 8) * kQueries * 2),
                          ds[m][k16][x]);
        }
      }
    }
    arrive_as_warp(work.scores_full());

    barrier_poll(work.queries_full(stage), parity);
    if (visible) add_gradient(dk, ds, columns_of(dk_q, static_cast<uint32_t>(stage * Shape::Queries::kBytes)));
    arrive_as_warp(work.queries_empty(stage));
    if (i + kStages < count) {
      const QueryStep loaded = next.record(work.kv_head);
      next.advance();
      barrier_poll(work.queries_empty(stage), parity);
      load_queries(stage, loaded);
      barrier_poll(work.douts_empty(stage), parity);
      load_douts(stage, loaded);
    }
    dq.add(step, i);
  }
  store_gradient<1>(args.dk, dk, args.scale, tile, first_key, args.first_column<Shape>(), 0, work.kv_head,
                    args.num_kv_heads, args.head_dim);
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kCtas)
    backward_kernel(const __grid_constant__ BackwardArgs args) {
  extern __shared__ __align__(128) char memory[];
  // CTAs take items in list order, so a CTA only waits for items that have been started.
  __shared__ int taken;
  Work<Shape> work{.tile = {}, .kv_head = 0, .memory = memory, .begin = shared_address(memory)};
  if (threadIdx.x == 0) {
    taken = args.order.take();
    work.init_barriers();
  }
  __syncthreads();
  if (taken < 0) return;
  const AttentionItem item = args.order.at(taken);
  work.tile = item.tile;
  work.kv_head = item.head;
  const AttentionTile& tile = work.tile;
  if (tile.first >= tile.length) return;
  copy_rows<Shape::kThreads>(work.keys(), HeadRows(args.k, tile.begin, work.kv_head, args.num_kv_heads, args.head_dim),
                             tile.first, tile.length);
  copy_rows<Shape::kThreads>(work.values(),
                             HeadRows(args.v, tile.begin, work.kv_head, args.num_kv_heads, args.v_head_dim), tile.first,
                             tile.length);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  if (threadIdx.x < Shape::kGroupThreads) {
    compute_dv(args, work);
  } else {
    compute_dk(args, work);
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
  const size_t shared_memory = kernel_tiers(context).shared_memory;
  constexpr int kWide = 2 * kWideSlice;
  if (has_wide_heads(options)) {  // 201 KB, 133 KB
    return with_attention_shape<BackwardShape<kWide, kWide, 1, 32, 1, 4, 2>,
                                BackwardShape<kWide, kWide, 1, 32, 1, 2, 2>>(options.head_dim, options.v_head_dim,
                                                                             shared_memory, f);
  }
  with_attention_shape<BackwardShape<64, 64, 2, 64, 2>, BackwardShape<128, 128, 2, 64, 2>,
                       BackwardShape<128, 128, 2, 32, 1>, BackwardShape<192, 128, 1, 64, 2>,
                       BackwardShape<192, 128, 1, 64, 1>, BackwardShape<256, 256, 1, 64, 1>,
                       BackwardShape<256, 256, 1, 32, 1, 2>>(options.head_dim, options.v_head_dim, shared_memory, f);
}

}  // namespace

BackwardScratch::BackwardScratch(const Context& context, ArenaScope& memory, const AttentionArgs& args)
    : tiles(memory, args), stats(memory, args) {
  const int64_t tokens = args.q.shape[0], heads = args.options.num_heads;
  with_backward_shape(context, args.options, [&](auto shape) {
    using Shape = decltype(shape);
    query_blocks = tokens / Shape::kQueries;
    turns = memory.take({heads, query_blocks}, DType::kI32);
    partial_dq = memory.take({heads, query_blocks, Shape::kQueries, Shape::kDimSlice}, DType::kF32);
  });
}

void sm80_attention_backward(const Context& context, const AttentionBackwardArgs& args,
                             const BackwardScratch& scratch) {
  const AttentionArgs& forward = args.forward;
  const AttentionOptions& options = forward.options;
  compute_query_stats(context, args, scratch.stats);
  with_backward_shape(context, options, [&](auto shape) {
    using Shape = decltype(shape);
    constexpr int kParts = kAttentionRows / Shape::kKeys;  // in a tile of the list
    const int64_t items = scratch.tiles.count * kParts * options.num_kv_heads;
    HONE_ASSERT(items <= INT32_MAX);
    for (int slice = 0; slice < Shape::kSlices; ++slice) {
      list_attention_tiles(context, forward, TileWork::kQueries, scratch.tiles);
      if (scratch.query_blocks > 0) {
        check(cudaMemsetAsync(scratch.turns.data, 0, scratch.turns.bytes(), stream_of(context)), "clearing turns");
      }
      launch<Shape>(context, {.order = {context, forward, scratch.tiles, TileWork::kQueries, kParts},
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
                              .dv = Gradient(args.dv),
                              .slice = slice});
    }
  });
}

}  // namespace hone::cuda::sm80
