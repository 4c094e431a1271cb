// The forward pass of attention on Hopper: a CTA owns 128 queries of one head, 64 per warpgroup, and visits the keys
// that they attend to, those of the diagonal first.
//
// Ping-pong (Shah et al., "FlashAttention-3", arXiv:2407.08608): the warpgroups alternate, one in softmax while the
// products of the other run. A warpgroup issues its next scores before the product of its last probabilities, so tensor
// cores do not wait for it:
//   tensor cores   S0(A) | S0(B) | S1(A) P0V0(A) | S1(B) P0V0(B) | S2(A) P1V1(A) | …
//   warpgroup A          | softmax S0(A)  | softmax S1(A)         | softmax S2(A)
//   warpgroup B                  | softmax S0(B)  | softmax S1(B)         | …
//
// Shared memory for heads of 128: Q 32 KB, 2 stages of 128 keys and values 128 KB. Registers: 240 per consumer thread
// (64 accumulators of out, 64 scores, 32 of packed probabilities), 24 per producer thread.
//
// One H200, causal, model TFLOP/s, `hone bench ops --op attention`, 2026-11-22: 4 x 4096, 32/4 heads of 128: 553 (73 %
// of a square product; cuDNN, dense, 611); 1 x 16384: 609; heads of 64: 383 (411), half the FLOPs per exponential; of
// 256: 626. Raw: bench/results/h200-attention.txt. In the comparison of tiers, 2026-11-23: 634, 647, 364, 644
// (bench/results/sm80-kernels-2026-11-23.txt).
//
// With few key-value heads at a time (attention_order.h), old and new by turns on one H200, 2026-11-29: 128/128 heads
// of 192 and 128: 499 -> 672 at 4 x 4096, 538 -> 730 at 1 x 16384 (83 % and 90 % of a square product); 32/4 of 128: 568
// -> 580 and 624 -> 630; 16/2 of 256: 643 -> 653. Heads at a time, 4 x 4096, 128/128 heads: 128: 499; 32: 494; 16: 569;
// 8: 612; 4: 655; 2: 662; 1: 664; 32/4 heads of 128: 4: 566; 2: 582; 1: 568. Raw:
// bench/results/h200-attention-order-2026-11-29.txt.
#include "ops/attention/sm90/attention_cuda.h"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#pragma nv_diag_suppress 177  // the kernel is empty for other targets: its functions have no caller
#endif

namespace hone::cuda::sm90 {

namespace {

constexpr int kStages = 2;
constexpr float kLog2E = 1.44269504088896f, kLn2 = 0.693147180559945f;

template <int kDim, int kValueDim, int kKeysOfStep, bool kHasCache = false>
struct Shape {
  static constexpr int kElements = kDim, kValueElements = kValueDim, kKeys = kKeysOfStep;
  static constexpr bool kCached = kHasCache;  ///< keys and values are those of a cache (CachedKeys)
  using WithCache = Shape<kDim, kValueDim, kKeysOfStep, true>;
};

/// The tile's rows counted from the first of its document's keys.
template <class Shape>
__device__ AttentionTile among_keys(const HopperForward& args, AttentionTile tile) {
  if constexpr (Shape::kCached) {
    const int before = args.cached.lengths[tile.stats];
    tile.length += before;
    tile.first += before;
  }
  return tile;
}

/// The row of k and v that has key `key` of the tile's document: the first of a step, which is within a page.
template <class Shape>
__device__ int key_row(const HopperForward& args, const AttentionTile& tile, int key) {
  static_assert(kCachePage % Shape::kKeys == 0);
  if constexpr (Shape::kCached) return static_cast<int>(args.cached.row(tile.stats, key));
  return tile.begin + key;
}

template <class Shape>
struct Shared : HopperMemory {
  using Queries = HopperOperand<Shape::kElements, kAttentionRows, true>;
  using Keys = HopperOperand<Shape::kElements, Shape::kKeys, true>;
  using Values = HopperOperand<Shape::kValueElements, Shape::kKeys, true>;
  static constexpr int kStageBytes = Keys::kBytes + Values::kBytes, kBarriers = 4 * kStages + 2;
  static constexpr int kBarriersBegin = Queries::kBytes + kStages * kStageBytes;
  static constexpr size_t kBytes = 1024 + kBarriersBegin + 8 * kBarriers + sizeof(AttentionItem);
  static_assert(kBytes <= 227 * 1024);

  using HopperMemory::HopperMemory;

  __device__ Queries q() const { return {begin}; }
  __device__ Keys k(int stage) const { return {begin + Queries::kBytes + stage * kStageBytes}; }
  __device__ Values v(int stage) const { return {k(stage).address + Keys::kBytes}; }
  __device__ uint32_t barrier(int i) const { return begin + kBarriersBegin + 8 * i; }
  __device__ uint32_t k_full(int stage) const { return barrier(stage); }
  __device__ uint32_t k_empty(int stage) const { return barrier(kStages + stage); }
  __device__ uint32_t v_full(int stage) const { return barrier(2 * kStages + stage); }
  __device__ uint32_t v_empty(int stage) const { return barrier(3 * kStages + stage); }
  __device__ uint32_t queries_full() const { return barrier(4 * kStages); }
  __device__ uint32_t queries_empty() const { return barrier(4 * kStages + 1); }
  /// The item whose queries have arrived, with head -1 at the end; guarded by queries_full.
  __device__ AttentionItem& item() const {
    return *reinterpret_cast<AttentionItem*>(memory + kBarriersBegin + 8 * kBarriers);
  }

  /// Called by one thread; __syncthreads must follow.
  __device__ void init_barriers() const {
    for (int stage = 0; stage < kStages; ++stage) {
      for (uint32_t full : {k_full(stage), v_full(stage)}) barrier_init(full, 1);
      for (uint32_t empty : {k_empty(stage), v_empty(stage)}) barrier_init(empty, kMultiplyingWarps);
    }
    barrier_init(queries_full(), 1);
    barrier_init(queries_empty(), kMultiplyingWarps);
    barrier_init_done();
  }
};

struct Maps {
  CUtensorMap q, k, v;
};

template <class Shape>
__device__ void load(const Maps& maps, const HopperForward& args, const Shared<Shape>& shared) {
  const int group = args.num_heads / args.num_kv_heads;
  RingPosition<kStages> ring;
  RingPosition<1> queries_ring;
  for (;; queries_ring.advance()) {
    const int index = args.order.take();
    const AttentionItem item = index < 0 ? AttentionItem{.tile = {}, .head = -1} : args.order.at(index);
    barrier_wait(shared.queries_empty(), queries_ring.phase ^ 1);
    shared.item() = item;
    if (index < 0) return barrier_arrive(shared.queries_full());
    const auto& [tile, head] = item;
    barrier_arrive_expect(shared.queries_full(), Shared<Shape>::Queries::kBytes);
    shared.q().load(maps.q, head, tile.begin + tile.first, shared.queries_full());
    const AttentionTile keys = among_keys<Shape>(args, tile);
    const KeySteps<Shape::kKeys> steps(keys, args.window);
    for (int i = 0; i < steps.count; ++i, ring.advance()) {
      const int row = key_row<Shape>(args, tile, steps.key(i));
      barrier_wait(shared.k_empty(ring.stage), ring.phase ^ 1);
      barrier_arrive_expect(shared.k_full(ring.stage), Shared<Shape>::Keys::kBytes);
      shared.k(ring.stage).load(maps.k, head / group, row, shared.k_full(ring.stage));
      barrier_wait(shared.v_empty(ring.stage), ring.phase ^ 1);
      barrier_arrive_expect(shared.v_full(ring.stage), Shared<Shape>::Values::kBytes);
      shared.v(ring.stage).load(maps.v, head / group, row, shared.v_full(ring.stage));
    }
  }
}

/// The online softmax of a thread's two rows.
struct Softmax {
  float scale_log2;
  float largest[2] = {-INFINITY, -INFINITY};  ///< running maximum of the row's scores
  float sum[2] = {0.0f, 0.0f};                ///< sum of this thread's probabilities, relative to `largest`

  /// s = exp(scale · (s − largest)); returns in `rescale` the factor for earlier sums.
  template <int kSums>
  __device__ void make_probabilities(float (&s)[kSums], float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float most = largest[i];
#pragma unroll
      for (int j = 0; j < kSums / 4; ++j) most = fmaxf(most, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      const float shift = most == -INFINITY ? 0.0f : scale_log2 * most;  // all keys of the row were masked so far
      rescale[i] = exp2_approximate(fmaf(scale_log2, largest[i], -shift));
      largest[i] = most;
      float part = 0.0f;
#pragma unroll
      for (int j = 0; j < kSums / 4; ++j) {
#pragma unroll
        for (int x = 2 * i; x < 2 * i + 2; ++x) {
          s[4 * j + x] = exp2_approximate(fmaf(scale_log2, s[4 * j + x], -shift));
          part += s[4 * j + x];
        }
      }
      sum[i] = fmaf(sum[i], rescale[i], part);
    }
  }
  /// The sum of the whole row.
  __device__ float total(int i) const {
    float all = sum[i] + __shfl_xor_sync(0xffffffffu, sum[i], 1);
    return all + __shfl_xor_sync(0xffffffffu, all, 2);
  }
};

/// s = −infinity where a query (rows, from `query` on) does not attend to a key (columns, from `key` on).
template <int kSums>
__device__ void hide_unseen(float (&s)[kSums], int query, int key, int window) {
  const int offset = query + sums_row() - key - sums_column();
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const int distance = offset + 8 * (x / 2) - 8 * j - x % 2;
      if (distance < 0 || (window > 0 && distance >= window)) s[4 * j + x] = -INFINITY;
    }
  }
}

/// Ping-pong: a named barrier per warpgroup grants the right to issue products; 128 threads wait and 128 arrive.
__device__ void wait_for_turn(int warpgroup) { named_sync(2 + warpgroup, 256); }
__device__ void pass_turn(int warpgroup) { named_arrive(2 + (warpgroup ^ 1), 256); }

/// Writes out and lse of a warpgroup's rows, the first of which is `query` of the tile's document; skips rows beyond
/// it.
template <int kSums>
__device__ void store_rows(const HopperForward& args, const Softmax& softmax, const float (&out)[kSums],
                           const AttentionTile& tile, int query, int head) {
  const int quarter = sums_column() / 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = query + sums_row() + 8 * i;
    const float total = softmax.total(i), factor = 1.0f / total;
    const int64_t token = tile.begin + row;
    __nv_bfloat16* to = args.out + (token * args.num_heads + head) * args.v_head_dim;
#pragma unroll
    for (int j = 0; j < kSums / 4; j += 4) {
      uint32_t packed[4];
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        packed[x] = pack_bf16(factor * out[4 * (j + x) + 2 * i], factor * out[4 * (j + x) + 2 * i + 1]);
      }
      transpose_quad(packed);
      const int element = 8 * (j + quarter);
      if (row < tile.length && element < args.v_head_dim) {
        *reinterpret_cast<uint4*>(to + element) = {packed[0], packed[1], packed[2], packed[3]};
      }
    }
    if (row < tile.length && quarter == 0) {
      args.lse[head * args.tokens + token] = fmaf(args.scale, softmax.largest[i], kLn2 * __log2f(total));
    }
  }
}

template <class Shape>
__device__ void multiply(const HopperForward& args, const Shared<Shape>& shared) {
  constexpr int kKeys = Shape::kKeys, kSums = Shape::kValueElements / 2;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32;
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };
  RingPosition<kStages> ring;
  RingPosition<1> queries_ring;
  if (warpgroup == 1) pass_turn(warpgroup);
  for (;; queries_ring.advance()) {
    barrier_wait(shared.queries_full(), queries_ring.phase);
    const auto [tile, head] = shared.item();
    if (head < 0) return;
    const AttentionTile keys = among_keys<Shape>(args, tile);
    const KeySteps<kKeys> steps(keys, args.window);
    const int query = keys.first + 64 * warpgroup;  // the warpgroup's first query among the keys
    float out[kSums] = {};
    uint32_t factor[kKeys / 4];
    Softmax softmax{.scale_log2 = args.scale * kLog2E};
    float s[kKeys / 2], rescale[2];
    const auto begin_scores = [&] {
      barrier_wait(shared.k_full(ring.stage), ring.phase);
      wait_for_turn(warpgroup);
      wgmma_fence();
      multiply_heads<Shape::kElements>(s, shared.q(), 64 * warpgroup, shared.k(ring.stage));
      wgmma_commit();
    };
    const auto finish_scores = [&](int i) {
      hold(s);
      release(shared.k_empty(ring.stage));
      const int key = steps.key(i);
      if (key + kKeys > query || (args.window > 0 && query + 64 > key + args.window)) {
        hide_unseen(s, query, key, args.window);
      }
      softmax.make_probabilities(s, rescale);
    };
    RingPosition<kStages> before;  // stage of the values to be multiplied next
    const auto add_values = [&] {
      barrier_wait(shared.v_full(before.stage), before.phase);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < kKeys / 16; ++j) add_columns(out, factor + 4 * j, shared.v(before.stage).columns(j));
      wgmma_commit();
    };

    begin_scores();
    pass_turn(warpgroup);
    wgmma_wait<0>();
    finish_scores(0);
    pack_sums(factor, s);
    for (int i = 1; i < steps.count; ++i) {
      before = ring;
      ring.advance();
      begin_scores();
      add_values();
      pass_turn(warpgroup);
      wgmma_wait<1>();
      finish_scores(i);
      wgmma_wait<0>();
      hold(out);
      release(shared.v_empty(before.stage));
#pragma unroll
      for (int j = 0; j < kSums; ++j) out[j] *= rescale[j % 4 / 2];
      pack_sums(factor, s);
    }
    release(shared.queries_empty());
    before = ring;
    ring.advance();
    add_values();
    wgmma_wait<0>();
    hold(out);
    release(shared.v_empty(before.stage));
    store_rows(args, softmax, out, tile, tile.first + 64 * warpgroup, head);
  }
}

template <class Shape>
__global__ void __launch_bounds__(kHopperThreads, 1)
    forward_kernel(const __grid_constant__ Maps maps, const __grid_constant__ HopperForward args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char dynamic[];
  const Shared<Shape> shared(dynamic);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  if (threadIdx.x >= 256) {
    fewer_registers<kLoadRegisters>();
    if (threadIdx.x == 256) load<Shape>(maps, args, shared);
  } else {
    more_registers<kMultiplyRegisters>();
    multiply<Shape>(args, shared);
  }
#endif
}

template <class Shape>
void launch(const Context& context, const AttentionArgs& args, const AttentionTiles& tiles, const CachedKeys& cached) {
  if constexpr (!Shape::kCached) {
    if (cached.lengths != nullptr) return launch<typename Shape::WithCache>(context, args, tiles, cached);
  }
  const AttentionOptions& options = args.options;
  const Maps maps{.q = head_map(args.q, options.num_heads, options.head_dim, kAttentionRows),
                  .k = head_map(args.k, options.num_kv_heads, options.head_dim, Shape::kKeys),
                  .v = head_map(args.v, options.num_kv_heads, options.v_head_dim, Shape::kKeys)};
  const HopperForward kernel_args{.order = {context, args, tiles, TileWork::kKeys},
                                  .tokens = args.q.shape[0],
                                  .num_heads = static_cast<int>(options.num_heads),
                                  .num_kv_heads = static_cast<int>(options.num_kv_heads),
                                  .v_head_dim = static_cast<int>(options.v_head_dim),
                                  .scale = options.scale,
                                  .window = static_cast<int>(options.sliding_window),
                                  .out = elements<__nv_bfloat16>(args.out),
                                  .lse = elements<float>(args.lse),
                                  .cached = cached};
  constexpr size_t kBytes = Shared<Shape>::kBytes;
  allow_shared_memory(forward_kernel<Shape>, kBytes);
  const auto blocks = std::min<int64_t>(queue_of(context).multiprocessors(), tiles.count * options.num_heads);
  forward_kernel<Shape>
      <<<static_cast<unsigned>(blocks), kHopperThreads, kBytes, stream_of(context)>>>(maps, kernel_args);
  check_launch("computing attention");
}

}  // namespace

bool hopper_attention_serves(const Context& context, const AttentionArgs& args) {
  const AttentionOptions& options = args.options;
  return hopper_attention_may_serve(context, args) && options.head_dim <= 256 && options.v_head_dim <= 256;
}

void hopper_attention(const Context& context, const AttentionArgs& args, const AttentionTiles& tiles,
                      const CachedKeys& cached) {
  list_attention_tiles(context, args, TileWork::kKeys, tiles, cached.lengths == nullptr ? 1 : 2);
  const int64_t dim = args.options.head_dim, value_dim = args.options.v_head_dim;
  if (dim <= 64 && value_dim <= 64) return launch<Shape<64, 64, 128>>(context, args, tiles, cached);
  if (dim <= 128 && value_dim <= 128) return launch<Shape<128, 128, 128>>(context, args, tiles, cached);
  if (dim <= 192 && value_dim <= 128) return launch<Shape<192, 128, 128>>(context, args, tiles, cached);
  launch<Shape<256, 256, 64>>(context, args, tiles, cached);
}

}  // namespace hone::cuda::sm90
