// dq of attention: a block owns 128 queries of one head and goes through all keys that they see. Scores are
// [queries, keys]: a warpgroup's gradients of them are the first factor of dq's product, in registers.
#include "ops/attention/attention_hopper_cuda.h"

namespace hone::cuda::sm90 {

namespace {

constexpr int kStages = 2;

template <int kDim>
struct Shared {
  /// Keys of a step: as many as registers hold the scores of.
  static constexpr int kKeys = 128;
  using Keys = HopperOperand<kDim, kKeys>;
  using Queries = HopperOperand<kDim, kHopperRows>;
  static constexpr int kStageBytes = 2 * Keys::kBytes;
  static constexpr int kBarriers = 2 * kStages + 2;
  static constexpr size_t kBytes = 1024 + 2 * Queries::kBytes + kStages * kStageBytes + 8 * (kBarriers + 1);

  char* memory;  ///< aligned to 1024
  uint32_t begin;

  __device__ explicit Shared(char* dynamic) {
    const uint32_t address = shared_address(dynamic), padding = (1024 - address % 1024) % 1024;
    memory = dynamic + padding;
    begin = address + padding;
  }
  __device__ Queries q() const { return {begin}; }
  __device__ Queries dout() const { return {begin + Queries::kBytes}; }
  __device__ Keys k(int stage) const { return {begin + 2 * Queries::kBytes + stage * kStageBytes}; }
  __device__ Keys v(int stage) const { return {k(stage).address + Keys::kBytes}; }
  __device__ uint32_t barrier(int i) const { return k(kStages).address + 8 * i; }
  __device__ uint32_t full(int stage) const { return barrier(stage); }
  __device__ uint32_t empty(int stage) const { return barrier(kStages + stage); }
  __device__ uint32_t queries_full() const { return barrier(2 * kStages); }
  __device__ uint32_t queries_empty() const { return barrier(2 * kStages + 1); }
  /// The item whose queries are there, or -1 at the end; goes with queries_full.
  __device__ int& item() const { return *reinterpret_cast<int*>(memory + (barrier(kBarriers) - begin)); }
};

struct Maps {
  CUtensorMap q, dout, k, v;
};

/// The steps of a tile: keys [begin, end) of the document, kKeys at a time, the last ones first.
template <int kKeys>
struct Steps {
  int begin, count;

  __device__ Steps(const HopperTile& tile, int window)
      : begin(window > 0 ? max(tile.first - window + 1, 0) / kKeys * kKeys : 0),
        count((min(tile.first + kHopperRows, tile.length) - begin + kKeys - 1) / kKeys) {}
};

template <int kDim>
__device__ void load(const Maps& maps, const HopperBackward& args, const Shared<kDim>& shared) {
  constexpr int kKeys = Shared<kDim>::kKeys;
  const int group = args.num_heads / args.num_kv_heads;
  const HopperItems items{args.tiles, args.num_heads, args.num_tiles * args.num_heads, args.counter};
  RingPosition<kStages> ring;
  RingPosition<1> queries_ring;
  for (;; queries_ring.advance()) {
    const int item = items.take();
    barrier_wait(shared.queries_empty(), queries_ring.phase ^ 1);
    shared.item() = item;
    if (item < 0) return barrier_arrive(shared.queries_full());
    const HopperTile tile = items.tile(item);
    const int head = items.head(item), row = tile.begin + tile.first;
    barrier_arrive_expect(shared.queries_full(), 2 * Shared<kDim>::Queries::kBytes);
    shared.q().load(maps.q, head, row, shared.queries_full());
    shared.dout().load(maps.dout, head, row, shared.queries_full());
    const Steps<kKeys> steps(tile, args.window);
    for (int step = steps.count - 1; step >= 0; --step, ring.advance()) {
      const uint32_t full = shared.full(ring.stage);
      const int key_row = tile.begin + steps.begin + step * kKeys;
      barrier_wait(shared.empty(ring.stage), ring.phase ^ 1);
      barrier_arrive_expect(full, Shared<kDim>::kStageBytes);
      shared.k(ring.stage).load(maps.k, head / group, key_row, full);
      shared.v(ring.stage).load(maps.v, head / group, key_row, full);
    }
  }
}

/// s = exp(scale · s − lse), 0 where a key (column) from `key` on is not seen from the row's query.
template <int kSums>
__device__ void make_probabilities(float (&s)[kSums], const HopperStats (&stats)[2], float scale_log2, bool masked,
                                   int query, int key, int window) {
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      float& p = s[4 * j + x];
      p = exp2_approximate(fmaf(scale_log2, p, -stats[x / 2].lse));
      if (masked) {
        const int distance = query + sums_row() + 8 * (x / 2) - (key + 8 * j + sums_column() + x % 2);
        if (distance < 0 || (window > 0 && distance >= window)) p = 0.0f;
      }
    }
  }
}

template <int kDim>
__device__ void multiply(const HopperBackward& args, const Shared<kDim>& shared) {
  constexpr int kKeys = Shared<kDim>::kKeys;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32;
  const float scale_log2 = args.scale * 1.44269504088896f;
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };
  const HopperItems items{args.tiles, args.num_heads, args.num_tiles * args.num_heads, args.counter};
  RingPosition<kStages> ring;
  RingPosition<1> queries_ring;
  for (;; queries_ring.advance()) {
    barrier_wait(shared.queries_full(), queries_ring.phase);
    const int item = shared.item();
    if (item < 0) return;
    const HopperTile tile = items.tile(item);
    const int head = items.head(item);
    const Steps<kKeys> steps(tile, args.window);
    const int query = tile.first + 64 * warpgroup;  // the warpgroup's first
    const HopperStats* row_stats = args.stats + head * args.stats_rows + tile.stats + query + sums_row();
    const HopperStats stats[2] = {row_stats[0], row_stats[8]};
    float dq[kDim / 2] = {};
    for (int step = steps.count - 1; step >= 0; --step, ring.advance()) {
      const int stage = ring.stage, key = steps.begin + step * kKeys;
      barrier_wait(shared.full(stage), ring.phase);
      float s[kKeys / 2], dp[kKeys / 2];
      wgmma_fence();
      multiply_heads<kDim>(s, shared.q(), 64 * warpgroup, shared.k(stage));
      wgmma_commit();
      multiply_heads<kDim>(dp, shared.dout(), 64 * warpgroup, shared.v(stage));
      wgmma_commit();
      wgmma_wait<1>();
      hold(s);
      const bool masked = key + kKeys > query || (args.window > 0 && query + 64 > key + args.window);
      make_probabilities(s, stats, scale_log2, masked, query, key, args.window);
      wgmma_wait<0>();
      hold(dp);
      if (step == 0) release(shared.queries_empty());  // the last step
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) dp[i] = s[i] * (dp[i] - stats[i % 4 / 2].delta);
      uint32_t factor[kKeys / 4];
      pack_sums(factor, dp);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kKeys / 16; ++i) add_columns(dq, factor + 4 * i, shared.k(stage).columns(i));
      wgmma_commit();
      wgmma_wait<0>();
      hold(dq);
      release(shared.empty(stage));
    }
    store_sums(args.dq, dq, args.scale, tile, query, head, args.num_heads, args.head_dim);
  }
}

template <int kDim>
__global__ void __launch_bounds__(kHopperThreads, 1)
    dq_kernel(const __grid_constant__ Maps maps, const __grid_constant__ HopperBackward args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char dynamic[];
  const Shared<kDim> shared(dynamic);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(shared.full(stage), 1);
      barrier_init(shared.empty(stage), kMultiplyingWarps);
    }
    barrier_init(shared.queries_full(), 1);
    barrier_init(shared.queries_empty(), kMultiplyingWarps);
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
  const Maps maps{.q = head_map(forward.q, options.num_heads, options.head_dim, kHopperRows),
                  .dout = head_map(args.dout, options.num_heads, options.head_dim, kHopperRows),
                  .k = head_map(forward.k, options.num_kv_heads, options.head_dim, Shared<kDim>::kKeys),
                  .v = head_map(forward.v, options.num_kv_heads, options.head_dim, Shared<kDim>::kKeys)};
  const HopperBackward kernel_args(args, scratch, scratch.query_tiles, 1);
  constexpr size_t kBytes = Shared<kDim>::kBytes;
  check(cudaFuncSetAttribute(dq_kernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, int{kBytes}),
        "preparing attention's gradients");
  const auto blocks = std::min<int64_t>(queue_of(context).multiprocessors(), scratch.tiles * options.num_heads);
  dq_kernel<kDim><<<static_cast<unsigned>(blocks), kHopperThreads, kBytes, stream_of(context)>>>(maps, kernel_args);
  check_launch("computing the gradient of queries");
}

}  // namespace

void hopper_dq(const Context& context, const AttentionBackwardArgs& args, const HopperScratch& scratch) {
  if (args.forward.options.head_dim <= 64) return launch<64>(context, args, scratch);
  launch<128>(context, args, scratch);
}

}  // namespace hone::cuda::sm90
