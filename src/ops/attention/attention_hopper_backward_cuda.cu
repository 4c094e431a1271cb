// The gradients of attention: a block owns 128 keys of one key-value head and goes through the queries that see them.
// Scores are formed as [keys, queries], so that a warpgroup's probabilities and their gradients are at once the first
// factors of dv and dk, in registers. dq needs those of both warpgroups: they meet in shared memory.
//
// A query's dq is a sum over blocks. Each adds when it is its turn, by atomic additions of float32 to memory that holds
// the sums as the threads do; the first one stores instead, the last one finishes. The tile before this one in a
// document comes earlier in the list and goes through the same queries in the same order, so turns are hardly waited
// for, and always for a block that has begun.
#include "ops/attention/attention_hopper_shape_cuda.h"

namespace hone::cuda::sm90 {

namespace {

struct Maps {
  CUtensorMap q, dout, k, v;
};

template <class Shape>
__device__ void load(const Maps& maps, const HopperBackward& args, const HopperShared<Shape>& shared) {
  using Shared = HopperShared<Shape>;
  const HopperItems items{args.tiles, args.num_kv_heads, args.num_tiles * args.num_kv_heads, args.counter};
  RingPosition<Shape::kStages> ring;
  RingPosition<1> keys_ring;
  for (;; keys_ring.advance()) {
    const int item = items.take();
    barrier_wait(shared.keys_empty(), keys_ring.phase ^ 1);
    if (item < 0) {
      shared.item().steps = -1;
      return barrier_arrive(shared.keys_full());
    }
    const HopperTile tile = items.tile(item);
    const int kv_head = items.head(item);
    HopperSteps<Shape::kQueries> at(tile, args);
    shared.item() = {tile, kv_head, at.count};
    barrier_arrive_expect(shared.keys_full(), Shared::kItemBytes);
    shared.k().load(maps.k, kv_head, tile.begin + tile.first, shared.keys_full());
    shared.v().load(maps.v, kv_head, tile.begin + tile.first, shared.keys_full());
    for (int i = 0; i < at.count; ++i, at.advance(), ring.advance()) {
      const HopperStep step = at.record(kv_head);
      const uint32_t full = shared.full(ring.stage);
      barrier_wait(shared.empty(ring.stage), ring.phase ^ 1);
      shared.step(ring.stage) = step;
      barrier_arrive_expect(full, Shared::kStageBytes + Shared::kStatsBytes);
      shared.q(ring.stage).load(maps.q, step.head, tile.begin + step.query, full);
      shared.dout(ring.stage).load(maps.dout, step.head, tile.begin + step.query, full);
      copy_bytes(shared.stats_address(ring.stage), args.stats + step.head * args.stats_rows + tile.stats + step.query,
                 Shared::kStatsBytes, full);
    }
  }
}

/// One thread: calls visit(count of tiles that have added, step) for each step that has a turn.
template <class Shape, class Visit>
__device__ void for_each_turn(const HopperBackward& args, const HopperShared<Shape>& shared, const Visit& visit) {
  RingPosition<1> keys_ring;
  for (;; keys_ring.advance()) {
    barrier_wait(shared.keys_full(), keys_ring.phase);
    const HopperItem item = shared.item();
    if (item.steps < 0) return;
    barrier_arrive(shared.keys_empty());
    HopperSteps<Shape::kQueries> at(item.tile, args);
    for (int i = 0; i < at.count; ++i, at.advance()) {
      const HopperStep step = at.record(item.kv_head);
      if (step.turns > 1) visit(args.turns + step.head * args.query_blocks + step.block, step);
    }
  }
}

/// One thread waits for the block's turns in memory, another one shows that the block has added: what takes a journey
/// to memory and back is not waited for by the warps that multiply.
template <class Shape>
__device__ void wait_for_turns(const HopperBackward& args, const HopperShared<Shape>& shared) {
  RingPosition<HopperShared<Shape>::kTurns> ring;
  for_each_turn(args, shared, [&](const int* added, const HopperStep& step) {
    barrier_wait(shared.shown(ring.stage), ring.phase ^ 1);
    while (load_acquire(added) != step.turn) {
    }
    barrier_arrive(shared.turn(ring.stage));
    ring.advance();
  });
}
template <class Shape>
__device__ void show_turns(const HopperBackward& args, const HopperShared<Shape>& shared) {
  RingPosition<HopperShared<Shape>::kTurns> ring;
  for_each_turn(args, shared, [&](int* added, const HopperStep& step) {
    barrier_wait(shared.added(ring.stage), ring.phase);
    if (step.turn < step.turns - 1) store_release(added, step.turn + 1);
    barrier_arrive(shared.shown(ring.stage));
    ring.advance();
  });
}

/// s = exp(scale · s − lse) of keys (rows) and queries (columns).
template <int kSums>
__device__ void make_probabilities(float (&s)[kSums], const HopperStats* stats, float scale_log2) {
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
    const HopperStats* of_queries = stats + 8 * j + sums_column();
    const float lse[2] = {of_queries[0].lse, of_queries[1].lse};
#pragma unroll
    for (int x = 0; x < 4; ++x) s[4 * j + x] = exp2_approximate(fmaf(scale_log2, s[4 * j + x], -lse[x % 2]));
  }
}

/// p = 0 where a key (rows, from `key` on) is not seen from a query (columns, from `query` on).
template <int kSums>
__device__ void hide_unseen(float (&p)[kSums], int query, int key, int window) {
  const int offset = query + sums_column() - key - sums_row();
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const int distance = offset + 8 * j + x % 2 - 8 * (x / 2);
      if (distance < 0 || (window > 0 && distance >= window)) p[4 * j + x] = 0.0f;
    }
  }
}

/// p (dp − δ), packed as p is.
template <int kSums>
__device__ void make_score_gradients(uint32_t (&packed)[kSums / 2], const float (&dp)[kSums],
                                     const uint32_t (&p)[kSums / 2], const HopperStats* stats) {
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
    const HopperStats* of_queries = stats + 8 * j + sums_column();
    const float delta[2] = {of_queries[0].delta, of_queries[1].delta};
#pragma unroll
    for (int i = 2 * j; i < 2 * j + 2; ++i) {
      const float2 of_pair = unpack_bf16(p[i]);
      packed[i] = pack_bf16(of_pair.x * (dp[2 * i] - delta[0]), of_pair.y * (dp[2 * i + 1] - delta[1]));
    }
  }
}

/// Writes a warpgroup's gradients of scores, its 64 keys from `key` on, to shared memory.
template <class Operand, int kSize>
__device__ void share(const Operand& gradients, const uint32_t (&packed)[kSize], int key) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % 128 / 32;
  // Of the four matrices that a warp stores at once, this lane's: 8 keys more or not, 8 queries more or not.
  const int line = key + 16 * warp + 8 * (lane / 8 % 2) + lane % 8, more = lane / 16;
#pragma unroll
  for (int j = 0; j < kSize / 2; j += 2) {
    const uint32_t box = gradients.address + j / 8 * Operand::kBoxBytes;
    const int unit = (j % 8 + more) ^ (line % 8);
    store_matrices(box + line * 128 + unit * 16,
                   {packed[2 * j], packed[2 * j + 1], packed[2 * j + 2], packed[2 * j + 3]});
  }
}

/// A warpgroup's part of dq; HopperShape says which.
template <class Shape>
struct PartOfDq {
  float sums[32];
  float half_box[Shape::kSplitsBox ? 16 : 1];

  /// = gradients · k
  __device__ void multiply(const HopperShared<Shape>& shared, int buffer) {
    const int warpgroup = static_cast<int>(threadIdx.x) / 128;
    const auto gradients = shared.gradients(buffer);
    const auto keys = shared.k();
#pragma unroll
    for (int i = 0; i < kHopperRows / 16; ++i) {
      const uint64_t factor = gradients.box_columns(Shape::kSplitsQueries ? warpgroup : 0, i);
      Wgmma<64, true, true>::add(sums, factor, keys.box_columns(first_element() / 64, i), i > 0);
      if constexpr (Shape::kSplitsBox) {
        Wgmma<32, true, true>::add(half_box, factor, keys.half_box_columns(1, warpgroup, i), i > 0);
      }
    }
  }
  __device__ void hold_all() {
    hold(sums);
    if constexpr (Shape::kSplitsBox) hold(half_box);
  }
  /// Adds to the sum in memory, or stores the first part: each thread its own.
  __device__ void add_to(float* partial, bool first) const {
    float* at = partial + 4 * (threadIdx.x % 128);
    add_to(at, sums, first);
    if constexpr (Shape::kSplitsBox) add_to(at + 32 * 128, half_box, first);
  }
  /// Adds what other blocks have added.
  __device__ void take_from(const float* partial) {
    const float* at = partial + 4 * (threadIdx.x % 128);
    take_from(at, sums);
    if constexpr (Shape::kSplitsBox) take_from(at + 32 * 128, half_box);
  }
  __device__ void store(const HopperBackward& args, const HopperTile& tile, const HopperStep& step) const {
    const int warpgroup = static_cast<int>(threadIdx.x) / 128;
    const int query = step.query + (Shape::kSplitsQueries ? 64 * warpgroup : 0);
    store_sums(args.dq, sums, args.scale, tile, query, step.head, args.num_heads, args.head_dim, first_element());
    if constexpr (Shape::kSplitsBox) {
      store_sums(args.dq, half_box, args.scale, tile, query, step.head, args.num_heads, args.head_dim,
                 64 + 32 * warpgroup);
    }
  }

 private:
  __device__ static int first_element() {
    return Shape::kSplitsQueries ? 0 : (Shape::kElements - 64) * (static_cast<int>(threadIdx.x) / 128);
  }
  template <int kSums>
  __device__ static void add_to(float* at, const float (&part)[kSums], bool first) {
#pragma unroll
    for (int i = 0; i < kSums; i += 4, at += 4 * 128) {
      if (first) {
        *reinterpret_cast<float4*>(at) = {part[i], part[i + 1], part[i + 2], part[i + 3]};
      } else {
        asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(at), "f"(part[i]),
                     "f"(part[i + 1]), "f"(part[i + 2]), "f"(part[i + 3])
                     : "memory");
      }
    }
  }
  template <int kSums>
  __device__ static void take_from(const float* at, float (&part)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; i += 4, at += 4 * 128) {
      float4 before;
      asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                   : "=f"(before.x), "=f"(before.y), "=f"(before.z), "=f"(before.w)
                   : "l"(at)
                   : "memory");
      part[i] += before.x, part[i + 1] += before.y, part[i + 2] += before.z, part[i + 3] += before.w;
    }
  }
};

template <class Shape>
__device__ void multiply(const HopperBackward& args, const HopperShared<Shape>& shared) {
  constexpr int kQueries = Shape::kQueries, kStages = Shape::kStages, kScores = Shape::kScores;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32;
  const float scale_log2 = args.scale * 1.44269504088896f;
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };
  RingPosition<kStages> ring;
  RingPosition<HopperShared<Shape>::kBuffers> buffers;
  RingPosition<HopperShared<Shape>::kTurns> turns;
  RingPosition<1> keys_ring;
  for (;; keys_ring.advance()) {
    barrier_wait(shared.keys_full(), keys_ring.phase);
    const int steps = shared.item().steps;
    if (steps < 0) return;
    const int key = shared.item().tile.first + 64 * warpgroup;  // the warpgroup's first
    float dk[Shape::kElements / 2] = {}, dv[Shape::kValueElements / 2] = {};
    for (int i = 0; i < steps; ++i, ring.advance(), buffers.advance()) {
      const int stage = ring.stage;
      const HopperStats* stats = shared.stats(stage);
      barrier_wait(shared.full(stage), ring.phase);
      float s[kScores], dp[kScores];
      wgmma_fence();
      multiply_heads<Shape::kElements>(s, shared.k(), 64 * warpgroup, shared.q(stage));
      wgmma_commit();
      const auto begin_dp = [&] {
        multiply_heads<Shape::kValueElements>(dp, shared.v(), 64 * warpgroup, shared.dout(stage));
        wgmma_commit();
      };
      if constexpr (Shape::kScoresTogether) begin_dp();
      wgmma_wait<Shape::kScoresTogether ? 1 : 0>();  // for s, and for dk of the step before
      hold(s);
      if (i > 0) release(shared.empty(stage == 0 ? kStages - 1 : stage - 1));

      make_probabilities(s, stats, scale_log2);
      const int query = shared.step(stage).query;
      if (query < key + 64 || (args.window > 0 && query + kQueries > key + args.window)) {
        hide_unseen(s, query, key, args.window);
      }
      uint32_t factor[kScores / 2];
      pack_sums(factor, s);
      wgmma_fence();
      if constexpr (!Shape::kScoresTogether) begin_dp();
#pragma unroll
      for (int j = 0; j < kQueries / 16; ++j) add_columns(dv, factor + 4 * j, shared.dout(stage).columns(j));
      wgmma_commit();
      wgmma_wait<1>();
      hold(dp);

      uint32_t gradient_factor[kScores / 2];
      make_score_gradients(gradient_factor, dp, factor, stats);
      share(shared.gradients(buffers.stage), gradient_factor, 64 * warpgroup);
      fence_for_async_reads();
      named_sync(1, 256);
      PartOfDq<Shape> dq;
      const auto begin_dk = [&] {
#pragma unroll
        for (int j = 0; j < kQueries / 16; ++j) add_columns(dk, gradient_factor + 4 * j, shared.q(stage).columns(j));
        wgmma_commit();
      };
      wgmma_fence();
      if constexpr (!Shape::kScoresTogether) {
        begin_dk();
        wgmma_wait<0>();
      }
      dq.multiply(shared, buffers.stage);
      wgmma_commit();
      if constexpr (Shape::kScoresTogether) begin_dk();
      wgmma_wait<Shape::kScoresTogether ? 1 : 0>();
      dq.hold_all();

      const HopperStep step = shared.step(stage);
      if (step.turns > 1) {
        barrier_wait(shared.turn(turns.stage), turns.phase);
        float* partial =
            args.partial_dq + ((step.head * args.query_blocks + step.block) * 2 + warpgroup) * Shape::kPartOfDq;
        if (step.turn == step.turns - 1) {
          dq.take_from(partial);
        } else {
          dq.add_to(partial, step.turn == 0);
        }
        __syncwarp();
        release(shared.added(turns.stage));
        turns.advance();
      }
      if (step.turn == step.turns - 1) dq.store(args, shared.item().tile, step);
      if constexpr (!Shape::kDkRunsOn) wgmma_wait<0>();
    }
    wgmma_wait<0>();
    hold(dk);
    hold(dv);
    const HopperTile tile = shared.item().tile;
    const int kv_head = shared.item().kv_head;
    release(shared.empty(ring.stage == 0 ? kStages - 1 : ring.stage - 1));
    release(shared.keys_empty());
    store_sums(args.dk, dk, args.scale, tile, key, kv_head, args.num_kv_heads, args.head_dim);
    store_sums(args.dv, dv, 1.0f, tile, key, kv_head, args.num_kv_heads, args.v_head_dim);
  }
}

template <class Shape>
__global__ void __launch_bounds__(kHopperThreads, 1)
    backward_kernel(const __grid_constant__ Maps maps, const __grid_constant__ HopperBackward args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char dynamic[];
  const HopperShared<Shape> shared(dynamic);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  if (threadIdx.x >= 256) {
    fewer_registers<kLoadRegisters>();
    if (threadIdx.x == 256) load<Shape>(maps, args, shared);
    if (threadIdx.x == 288) wait_for_turns<Shape>(args, shared);
    if (threadIdx.x == 320) show_turns<Shape>(args, shared);
  } else {
    more_registers<kMultiplyRegisters>();
    multiply<Shape>(args, shared);
  }
#endif
}

template <class Shape>
void launch(const Context& context, const AttentionBackwardArgs& args, const HopperScratch& scratch) {
  const AttentionArgs& forward = args.forward;
  const AttentionOptions& options = forward.options;
  const Maps maps{.q = head_map(forward.q, options.num_heads, options.head_dim, Shape::kQueries),
                  .dout = head_map(args.dout, options.num_heads, options.v_head_dim, Shape::kQueries),
                  .k = head_map(forward.k, options.num_kv_heads, options.head_dim, kHopperRows),
                  .v = head_map(forward.v, options.num_kv_heads, options.v_head_dim, kHopperRows)};
  const HopperBackward kernel_args(args, scratch);
  constexpr size_t kBytes = HopperShared<Shape>::kBytes;
  check(cudaFuncSetAttribute(backward_kernel<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, int{kBytes}),
        "preparing attention's gradients");
  const auto blocks =
      std::min<int64_t>(queue_of(context).multiprocessors(), scratch.tiles.count * options.num_kv_heads);
  backward_kernel<Shape>
      <<<static_cast<unsigned>(blocks), kHopperThreads, kBytes, stream_of(context)>>>(maps, kernel_args);
  check_launch("computing the gradients of attention");
}

}  // namespace

void hopper_backward(const Context& context, const AttentionBackwardArgs& args, const HopperScratch& scratch) {
  switch (hopper_sizes(args.forward.options.head_dim, args.forward.options.v_head_dim) - kHopperSizes) {
    case 0:
      return launch<HopperShape<64, 64>>(context, args, scratch);
    case 1:
      return launch<HopperShape<128, 128>>(context, args, scratch);
    default:
      return launch<HopperShape<192, 128>>(context, args, scratch);
  }
}

}  // namespace hone::cuda::sm90
