// The main loop of Hopper's grouped products: a ring of 5 stages in shared memory, filled by one producer warpgroup and
// read by two consumer warpgroups, which process whole tiles alternately: one multiplies while the other is in its
// epilogue. Included by *_cuda.cu only.
//
// A stage has 64 of k: 128 rows of A and 192 columns of B, 40 KB; half of B is multicast by the other CTA of the
// cluster. Shared memory: 5 stages, 16 KB of strips for epilogues, barriers and the list of tiles, 217 KB plus 8 bytes
// per group. Registers: 232 per consumer thread, of which 192 are accumulators, and 40 per producer thread.
//
// Four stages were as fast as five; a sixth does not fit. Tiles of 256 columns would need 256 accumulators per thread.
// The rates of each product are in its own file; docs/kernels.md explains the design.
#pragma once

#include <algorithm>
#include <map>

#include "core/stream/cuda_launch.h"
#include "kernels/cuda/grouped_gemm/hopper_tiles_cuda.h"
#include "kernels/cuda/sm90/tma_cuda.h"
#include "kernels/cuda/sm90/wgmma_cuda.h"

namespace hone::cuda::sm90 {

constexpr int kThreads = 384;
constexpr int kConsumers = 2;  // warpgroups 0 and 1; the producer is warpgroup 2
constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;

constexpr int kStages = 5;
constexpr int kLineBytes = 128, kLineBlockBytes = 64 * kLineBytes;
constexpr int kABytes = kTileM * kTileK * 2, kBBytes = kTileN * kTileK * 2;
constexpr int kStageBytes = kABytes + kBBytes;
constexpr int kStripBytes = 2048;  // per consumer warp, staging buffer of its epilogue
constexpr int kStripsBytes = kConsumers * 4 * kStripBytes;
constexpr int kBarrierBytes = (2 * kStages + kConsumers) * 8;

/// Shared memory of a CTA: stages (aligned to 1024), strips, barriers, the list of tiles.
constexpr size_t shared_bytes(int tile_list_size) {
  return 1024 + kStages * kStageBytes + kStripsBytes + kBarrierBytes +
         sizeof(int32_t) * static_cast<size_t>(tile_list_size);
}

/// Accumulators of one tile in a warpgroup: twice 64 rows, in the layout of Wgmma.
template <int kColumns>
using WarpgroupSums = float[2][kColumns / 2];

struct SharedMemory {
  uint32_t stages, strips, barriers;
  int32_t* tile_list;

  __device__ explicit SharedMemory(char* memory) {
    const uint32_t begin = shared_address(memory);
    stages = (begin + 1023) / 1024 * 1024;
    strips = stages + kStages * kStageBytes;
    barriers = strips + kStripsBytes;
    tile_list = reinterpret_cast<int32_t*>(memory + (barriers + kBarrierBytes - begin));
  }
  __device__ uint32_t a(int stage) const { return stages + static_cast<uint32_t>(stage * kStageBytes); }
  __device__ uint32_t b(int stage) const { return a(stage) + kABytes; }
  /// Barrier: the stage holds both operands.
  __device__ uint32_t full(int stage) const { return barriers + static_cast<uint32_t>(8 * stage); }
  /// Barrier: both CTAs of the pair have read the stage. B is multicast to both.
  __device__ uint32_t empty(int stage) const { return full(stage) + 8 * kStages; }

  /// Barrier: the consumer may take its next tile, since the other one has consumed all stages of the previous tile.
  /// Without it, a wait for a stage could miss a whole phase and return with a stage of the other consumer's tile.
  __device__ uint32_t turn(int warpgroup) const { return full(2 * kStages + warpgroup); }

  /// Called by one thread; cluster_sync must follow.
  __device__ void init_barriers(uint32_t producer_arrivals) const {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(full(stage), producer_arrivals);
      barrier_init(empty(stage), 2 * 4);  // the warps of one warpgroup in each CTA of the pair
    }
    for (int warpgroup = 0; warpgroup < kConsumers; ++warpgroup) barrier_init(turn(warpgroup), 4);  // warps
    barrier_init_done();
  }
  /// Called by all lanes of a consumer warp.
  __device__ void release(int stage) const {
    const uint32_t lane = threadIdx.x % 32;
    __syncwarp();
    if (lane < 2) barrier_arrive_at(empty(stage), lane);
  }
};

/// Advance of an operand's address for 16 of k, in descriptor units.
template <bool kColumns>
constexpr uint32_t kNext16 = (kColumns ? 16 * 128 : 32) / 16;

/// Multiplies one stage: k16 steps of 16 elements, or of 32 of 8-bit floats, whose lines have as many bytes.
template <int kBlocks, int kN, bool kAColumns, bool kBColumns, bool kFp8, int kSums>
__device__ inline void multiply_16(float (&sums)[2][kSums], uint64_t a, uint64_t b, int k16, bool accumulate) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const auto at = static_cast<uint32_t>(k16);
    const uint64_t rows = advance(a, static_cast<uint32_t>(block * (kLineBlockBytes / 16)) + at * kNext16<kAColumns>);
    const uint64_t columns = advance(b, at * kNext16<kBColumns>);
    if constexpr (kFp8) {
      Fp8Wgmma<kN>::add(sums[block], rows, columns, accumulate);
    } else {
      Wgmma<kN, kAColumns, kBColumns>::add(sums[block], rows, columns, accumulate);
    }
  }
}

/// The order in which consumers take tiles.
class Turns {
 public:
  __device__ Turns(const SharedMemory& shared, int warpgroup) : shared_(shared), warpgroup_(warpgroup) {}

  /// Called before the first stage of a tile. Warpgroup 0 does not wait for its first tile.
  __device__ void wait() {
    barrier_wait(shared_.turn(warpgroup_), phase_ ^ static_cast<uint32_t>(warpgroup_ == 0));
    phase_ ^= 1;
  }
  /// Called when the last stage of the tile has arrived.
  __device__ void pass() const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_.turn((warpgroup_ + 1) % kConsumers));
  }

 private:
  const SharedMemory& shared_;
  int warpgroup_;
  uint32_t phase_ = 0;
};

/// Accumulates the product of `steps` stages, from zero if `fresh`. `besides.prepare(stage, step)` may modify a stage
/// that has arrived; `besides.last()` is called when all have arrived.
template <int kBlocks, int kN, bool kAColumns, bool kBColumns, bool kFp8 = false, int kSums, class Besides>
__device__ inline void multiply(float (&sums)[2][kSums], const SharedMemory& shared, RingPosition<kStages>& at,
                                int steps, bool fresh, const Besides& besides) {
  hold(sums);
  int previous = 0;
  for (int step = 0; step < steps; ++step) {
    const int stage = __shfl_sync(0xffffffffu, at.stage, 0);  // uniform for ptxas, too
    barrier_wait(shared.full(at.stage), at.phase);
    besides.prepare(at.stage, step);
    const uint64_t a = wgmma_factor(shared.a(stage), kLineBlockBytes);
    const uint64_t b = wgmma_factor(shared.b(stage), kLineBlockBytes);
    wgmma_fence();
    multiply_16<kBlocks, kN, kAColumns, kBColumns, kFp8>(sums, a, b, 0, step > 0 || !fresh);
#pragma unroll
    for (int k16 = 1; k16 < kTileK / 16; ++k16) {
      multiply_16<kBlocks, kN, kAColumns, kBColumns, kFp8>(sums, a, b, k16, true);
    }
    wgmma_commit();
    if (step > 0) {
      wgmma_wait<1>();
      shared.release(previous);
    }
    previous = at.stage;
    at.advance();
  }
  besides.last();
  wgmma_wait<0>();
  hold(sums);
  if (steps > 0) shared.release(previous);
}

/// As multiply(), for a tile of which `rows` x `columns` are used: fewer or narrower wgmma, bitwise the same results.
template <bool kAColumns, bool kBColumns, bool kFp8 = false, int kSums, class Besides>
__device__ inline void multiply_tile(float (&sums)[2][kSums], const SharedMemory& shared, RingPosition<kStages>& at,
                                     int steps, int rows, int columns, const Besides& besides) {
  if (rows == 0) {  // stages must still be consumed: this CTA loads half of B for the other
    for (int step = 0; step < steps; ++step) {
      barrier_wait(shared.full(at.stage), at.phase);
      shared.release(at.stage);
      at.advance();
    }
    besides.last();
  } else if (2 * kSums == 128 || columns <= 128) {
    if (rows <= kBlockM) {
      multiply<1, 128, kAColumns, kBColumns, kFp8>(sums, shared, at, steps, true, besides);
    } else {
      multiply<2, 128, kAColumns, kBColumns, kFp8>(sums, shared, at, steps, true, besides);
    }
  } else if constexpr (2 * kSums > 128) {
    if (rows <= kBlockM) {
      multiply<1, 2 * kSums, kAColumns, kBColumns, kFp8>(sums, shared, at, steps, true, besides);
    } else {
      multiply<2, 2 * kSums, kAColumns, kBColumns, kFp8>(sums, shared, at, steps, true, besides);
    }
  }
}

/// Number of clusters of a kernel that run concurrently, queried once per kernel.
class PairCounts {
 public:
  int of(const void* kernel, const cudaLaunchConfig_t& config) {
    int& count = counts_[kernel];
    if (count == 0) {
      check(cudaOccupancyMaxActiveClusters(&count, kernel, &config), "counting pairs of blocks");
    }
    return count;
  }

 private:
  std::map<const void*, int> counts_;
};

/// Launches a kernel of persistent clusters for at most `tiles` pair tiles.
template <class... Parameters>
void launch_pairs(const Context& context, const char* doing, void (*kernel)(Parameters...), int tile_list_size,
                  int64_t tiles, const Parameters&... parameters) {
  constexpr size_t kMostShared = shared_bytes(2 * (kMaxGroups + 2));
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kMostShared)),
        doing);
  cudaLaunchAttribute pair{};
  pair.id = cudaLaunchAttributeClusterDimension;
  pair.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = 2;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = kMostShared;
  config.stream = stream_of(context);
  config.attrs = &pair;
  config.numAttrs = 1;
  const int64_t pairs = queue_of(context).state<PairCounts>().of(reinterpret_cast<const void*>(kernel), config);
  config.dynamicSmemBytes = shared_bytes(tile_list_size);
  config.gridDim = static_cast<unsigned>(2 * std::min(pairs, tiles));
  check(cudaLaunchKernelEx(&config, kernel, parameters...), doing);
}

}  // namespace hone::cuda::sm90
