// dk and dv of attention: a block owns 128 keys of one key-value head and goes through all queries that see them, head
// after head of the group. Scores are formed as [keys, queries], so that a warpgroup's probabilities are at once the
// first factor of its next product, in registers.
#include "ops/attention/attention_hopper_cuda.h"

namespace hone::cuda::sm90 {

namespace {

constexpr int kQueries = 64;  // of a step
constexpr int kStages = 4;

template <int kDim>
struct Shared {
  using Keys = HopperOperand<kDim, kHopperRows>;
  using Queries = HopperOperand<kDim, kQueries>;
  static constexpr int kStatsBytes = kQueries * static_cast<int>(sizeof(HopperStats));
  static constexpr int kStageBytes = 2 * Queries::kBytes;
  static constexpr int kBarriers = 2 * kStages + 2;
  static constexpr size_t kBytes =
      1024 + 2 * Keys::kBytes + kStages * (kStageBytes + kStatsBytes) + 8 * (kBarriers + 1);

  char* memory;  ///< aligned to 1024
  uint32_t begin;

  __device__ explicit Shared(char* dynamic) {
    const uint32_t address = shared_address(dynamic), padding = (1024 - address % 1024) % 1024;
    memory = dynamic + padding;
    begin = address + padding;
  }
  __device__ Keys k() const { return {begin}; }
  __device__ Keys v() const { return {begin + Keys::kBytes}; }
  __device__ Queries q(int stage) const { return {begin + 2 * Keys::kBytes + stage * kStageBytes}; }
  __device__ Queries dout(int stage) const { return {q(stage).address + Queries::kBytes}; }
  __device__ uint32_t stats_offset(int stage) const {
    return 2 * Keys::kBytes + kStages * kStageBytes + stage * kStatsBytes;
  }
  __device__ uint32_t stats_address(int stage) const { return begin + stats_offset(stage); }
  __device__ const HopperStats* stats(int stage) const {
    return reinterpret_cast<const HopperStats*>(memory + stats_offset(stage));
  }
  __device__ uint32_t barrier(int i) const { return stats_address(kStages) + 8 * i; }
  __device__ uint32_t full(int stage) const { return barrier(stage); }
  __device__ uint32_t empty(int stage) const { return barrier(kStages + stage); }
  __device__ uint32_t keys_full() const { return barrier(2 * kStages); }
  __device__ uint32_t keys_empty() const { return barrier(2 * kStages + 1); }
  /// The item whose keys are there, or -1 at the end; goes with keys_full.
  __device__ int& item() const { return *reinterpret_cast<int*>(memory + stats_offset(kStages) + 8 * kBarriers); }
};

struct Maps {
  CUtensorMap q, dout, k, v;
};

/// The steps of a tile, for each head of the group: queries [begin, end) of the document, kQueries at a time.
struct Steps {
  int begin, end;

  __device__ Steps(const HopperTile& tile, int window) : begin(tile.first), end(tile.length) {
    const int keys = min(tile.length - tile.first, kHopperRows);
    if (window > 0) end = min(end, tile.first + keys - 1 + window);
  }
};

template <int kDim>
__device__ void load(const Maps& maps, const HopperBackward& args, const Shared<kDim>& shared) {
  const int group = args.num_heads / args.num_kv_heads;
  const HopperItems items{args.tiles, args.num_kv_heads, args.num_tiles * args.num_kv_heads, args.counter};
  RingPosition<kStages> ring;
  RingPosition<1> keys_ring;
  for (;; keys_ring.advance()) {
    const int item = items.take();
    barrier_wait(shared.keys_empty(), keys_ring.phase ^ 1);
    shared.item() = item;
    if (item < 0) return barrier_arrive(shared.keys_full());
    const HopperTile tile = items.tile(item);
    const int kv_head = items.head(item);
    barrier_arrive_expect(shared.keys_full(), 2 * Shared<kDim>::Keys::kBytes);
    shared.k().load(maps.k, kv_head, tile.begin + tile.first, shared.keys_full());
    shared.v().load(maps.v, kv_head, tile.begin + tile.first, shared.keys_full());
    const Steps steps(tile, args.window);
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const HopperStats* stats = args.stats + head * args.stats_rows + tile.stats;
      for (int query = steps.begin; query < steps.end; query += kQueries, ring.advance()) {
        const uint32_t full = shared.full(ring.stage);
        barrier_wait(shared.empty(ring.stage), ring.phase ^ 1);
        barrier_arrive_expect(full, Shared<kDim>::kStageBytes + Shared<kDim>::kStatsBytes);
        shared.q(ring.stage).load(maps.q, head, tile.begin + query, full);
        shared.dout(ring.stage).load(maps.dout, head, tile.begin + query, full);
        copy_bytes(shared.stats_address(ring.stage), stats + query, Shared<kDim>::kStatsBytes, full);
      }
    }
  }
}

/// s = exp(scale · s − lse) of keys (rows, from `key` on) and queries (columns, from `query` on), 0 where not seen.
template <int kSums>
__device__ void make_probabilities(float (&s)[kSums], const HopperStats* stats, float scale_log2, bool masked,
                                   int query, int key, int window) {
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const float lse = stats[8 * j + sums_column() + x].lse;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& p = s[4 * j + 2 * i + x];
        p = exp2_approximate(fmaf(scale_log2, p, -lse));
        if (masked) {
          const int distance = query + 8 * j + sums_column() + x - (key + sums_row() + 8 * i);
          if (distance < 0 || (window > 0 && distance >= window)) p = 0.0f;
        }
      }
    }
  }
}

/// dp = p (dp − δ)
template <int kSums>
__device__ void make_score_gradients(float (&dp)[kSums], const float (&p)[kSums], const HopperStats* stats) {
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const float delta = stats[8 * j + sums_column() + x].delta;
#pragma unroll
      for (int i = 0; i < 2; ++i) dp[4 * j + 2 * i + x] = p[4 * j + 2 * i + x] * (dp[4 * j + 2 * i + x] - delta);
    }
  }
}

template <int kDim>
__device__ void multiply(const HopperBackward& args, const Shared<kDim>& shared) {
  const int warpgroup = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = args.num_heads / args.num_kv_heads;
  const float scale_log2 = args.scale * 1.44269504088896f;
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };
  const HopperItems items{args.tiles, args.num_kv_heads, args.num_tiles * args.num_kv_heads, args.counter};
  RingPosition<kStages> ring;
  RingPosition<1> keys_ring;
  for (;; keys_ring.advance()) {
    barrier_wait(shared.keys_full(), keys_ring.phase);
    const int item = shared.item();
    if (item < 0) return;
    const HopperTile tile = items.tile(item);
    const int kv_head = items.head(item);
    const Steps steps(tile, args.window);
    const int key = tile.first + 64 * warpgroup;  // the warpgroup's first
    float dk[kDim / 2] = {}, dv[kDim / 2] = {};
    for (int head = 0; head < group; ++head) {
      for (int query = steps.begin; query < steps.end; query += kQueries, ring.advance()) {
        const int stage = ring.stage;
        barrier_wait(shared.full(stage), ring.phase);
        if (query + kQueries <= key) {  // before all of the warpgroup's keys
          release(shared.empty(stage));
          continue;
        }
        float s[kQueries / 2], dp[kQueries / 2];
        wgmma_fence();
        multiply_heads<kDim>(s, shared.k(), 64 * warpgroup, shared.q(stage));
        wgmma_commit();
        multiply_heads<kDim>(dp, shared.v(), 64 * warpgroup, shared.dout(stage));
        wgmma_commit();
        wgmma_wait<1>();
        hold(s);

        const HopperStats* stats = shared.stats(stage);
        const bool masked = query < key + 64 || (args.window > 0 && query + kQueries > key + args.window);
        make_probabilities(s, stats, scale_log2, masked, query, key, args.window);
        uint32_t factor[kQueries / 4];
        pack_sums(factor, s);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kQueries / 16; ++step) {
          add_columns(dv, factor + 4 * step, shared.dout(stage).columns(step));
        }
        wgmma_commit();
        wgmma_wait<1>();
        hold(dp);
        make_score_gradients(dp, s, stats);
        uint32_t gradient_factor[kQueries / 4];
        pack_sums(gradient_factor, dp);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kQueries / 16; ++step) {
          add_columns(dk, gradient_factor + 4 * step, shared.q(stage).columns(step));
        }
        wgmma_commit();
        wgmma_wait<0>();
        hold(dk);
        hold(dv);
        release(shared.empty(stage));
      }
    }
    release(shared.keys_empty());
    store_sums(args.dk, dk, args.scale, tile, key, kv_head, args.num_kv_heads, args.head_dim);
    store_sums(args.dv, dv, 1.0f, tile, key, kv_head, args.num_kv_heads, args.head_dim);
  }
}

template <int kDim>
__global__ void __launch_bounds__(kHopperThreads, 1)
    dk_dv_kernel(const __grid_constant__ Maps maps, const __grid_constant__ HopperBackward args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char dynamic[];
  const Shared<kDim> shared(dynamic);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(shared.full(stage), 1);
      barrier_init(shared.empty(stage), kMultiplyingWarps);
    }
    barrier_init(shared.keys_full(), 1);
    barrier_init(shared.keys_empty(), kMultiplyingWarps);
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x >= 256) {
    fewer_registers<kLoadRegisters>();
    if (threadIdx.x == 256) load<kDim>(maps, args, shared);
  } else {
    more_registers<kMultiplyRegisters>();
    multiply<kDim>(args, shared);
  }
#endif
}

template <int kDim>
void launch(const Context& context, const AttentionBackwardArgs& args, const HopperScratch& scratch) {
  const AttentionArgs& forward = args.forward;
  const AttentionOptions& options = forward.options;
  const Maps maps{.q = head_map(forward.q, options.num_heads, options.head_dim, kQueries),
                  .dout = head_map(args.dout, options.num_heads, options.head_dim, kQueries),
                  .k = head_map(forward.k, options.num_kv_heads, options.head_dim, kHopperRows),
                  .v = head_map(forward.v, options.num_kv_heads, options.head_dim, kHopperRows)};
  const HopperBackward kernel_args(args, scratch, scratch.key_tiles, 0);
  constexpr size_t kBytes = Shared<kDim>::kBytes;
  check(cudaFuncSetAttribute(dk_dv_kernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, int{kBytes}),
        "preparing attention's gradients");
  const auto blocks = std::min<int64_t>(queue_of(context).multiprocessors(), scratch.tiles * options.num_kv_heads);
  dk_dv_kernel<kDim><<<static_cast<unsigned>(blocks), kHopperThreads, kBytes, stream_of(context)>>>(maps, kernel_args);
  check_launch("computing the gradients of keys and values");
}

}  // namespace

void hopper_dk_dv(const Context& context, const AttentionBackwardArgs& args, const HopperScratch& scratch) {
  if (args.forward.options.head_dim <= 64) return launch<64>(context, args, scratch);
  launch<128>(context, args, scratch);
}

}  // namespace hone::cuda::sm90
