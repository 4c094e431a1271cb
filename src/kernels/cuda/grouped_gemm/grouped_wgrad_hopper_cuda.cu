// The weight gradients of experts on Hopper. Both operands are MN-major (a line for each row of the group), and k runs
// over the rows of a group. Budget and ring as in hopper_pipeline_cuda.h, but 224 registers per consumer and 56 per
// producer thread.
//
// Tuned for 128 experts of 2048 x 768 and 16,384 tokens, top-8. One H200, 2026-11-30, in float32: down 573, gate and up
// 565 TFLOP/s (bench/results/h200-expert-gradients-2026-11-30.txt). Shared memory is near its limit: wgmma reads and
// TMA writes take 832 cycles of it for 768 cycles of products, and the epilogue 96. Tried without gain: 40 registers
// for the producer (spills in its loop, 20 % slower), two steps of wgmma in flight (1 % slower: a stage less for the
// producer).
#include "kernels/cuda/grouped_gemm/grouped_gemm_hopper.h"
#include "kernels/cuda/grouped_gemm/grouped_tensor_cores_cuda.h"
#include "kernels/cuda/grouped_gemm/hopper_pipeline_cuda.h"
#include "kernels/cuda/grouped_gemm/hopper_weight_store_cuda.h"

namespace hone::cuda {

using namespace sm90;

namespace {

/// D(e) [P, S] = Σ over rows r of e: p[p(r), :]ᵀ · s[r, :]. Both operands are MN-major: a line for each r. Only p may
/// be gathered; it is `a` of GroupedWgradArgs, or `b` if that is gathered, in which case the result is transposed when
/// it is written.
struct WeightFactors {
  CUtensorMap p, s;
  const int64_t* offsets = nullptr;
  const __nv_bfloat16* gathered = nullptr;  // [·, P]
  const int32_t* p_rows = nullptr;          // [R] or null
  int groups = 0;
  int p_width = 0, s_width = 0, n_tiles = 0;
  void* dw = nullptr;  // float32 or bfloat16 [E, P, S], or [E, S, P] where transposed
  bool transposed = false, add = false;
};

// The producer holds requested row indices, so it has 56 registers; each consumer has 8 fewer.
constexpr int kWeightConsumerRegisters = 224, kWeightProducerRegisters = 56;
static_assert(kConsumers * kWeightConsumerRegisters + kWeightProducerRegisters ==
              kConsumers * kConsumerRegisters + kProducerRegisters);

__device__ inline int steps_of(const PairTile& tile) { return (tile.k_count + kTileK - 1) / kTileK; }
__device__ inline int blocks_of(const PairTile& tile) { return (tile.m_count + kBlockM - 1) / kBlockM; }

/// The producer warpgroup. A stage has 64 rows x 128 columns of p for this CTA, and 64 rows x 192 columns of s, of
/// which each CTA of the pair loads 32 rows for both.
class WeightLoader {
 public:
  __device__ WeightLoader(const WeightFactors& factors, const SharedMemory& shared, int rank)
      : f_(factors), shared_(shared), rank_(rank) {}

  __device__ void run(WeightTiles tiles) {
    const bool gather = f_.p_rows != nullptr;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4, warps = gather ? 4 : 1;
    if (warp >= warps) return;
    if (gather) request_rows(tiles.rows_of_next(), 0);
    PairTile tile;
    while (tiles.next(tile)) {
      const int steps = steps_of(tile);
      if (gather && steps == 0) request_rows(tiles.rows_of_next(), 0);
      const char* const from = reinterpret_cast<const char*>(f_.gathered + tile.m_begin + unit() * 8);
      for (int step = 0; step < steps; ++step) {
        if (gather && step % kRequested == 0) {
          take_requested();
          const bool ends = step + kRequested >= steps;
          request_rows(ends ? tiles.rows_of_next() : RowRange{tile.k_begin, tile.k_count},
                       ends ? 0 : step + kRequested);
        }
        barrier_wait(shared_.empty(at_.stage), at_.phase ^ 1);
        if (elect_one()) load(tile, step * kTileK, gather, warp, warps);
        if (gather) gather_rows(from, tile.m_count - unit() * 8, step % kRequested);
        at_.advance();
      }
    }
  }

 private:
  static constexpr int kRowsApart = 16, kRowsEach = kTileK / kRowsApart;  // 8 threads copy a line of 128 bytes
  static constexpr int kRequested = 8;                                    // steps ahead
  static constexpr uint16_t kBothBlocks = 3;

  /// The part of one of `warps` warps.
  __device__ void load(const PairTile& tile, int k, bool gather, int warp, int warps) {
    const uint32_t full = shared_.full(at_.stage), a = shared_.a(at_.stage), b = shared_.b(at_.stage);
    if (warp == 0) {
      const int p_blocks = gather ? 0 : blocks_of(tile);
      barrier_arrive_expect(full, static_cast<uint32_t>(kBBytes + p_blocks * kLineBlockBytes));
      for (int block = 0; block < p_blocks; ++block) {
        copy_box(f_.p, tile.m_begin + block * kBlockM, tile.k_begin + k, 0,
                 a + static_cast<uint32_t>(block * kLineBlockBytes), full);
      }
    }
    for (int block = warp; block < kTileN / 64; block += warps) {
      copy_box_to_cluster(f_.s, tile.n_tile * kTileN + 64 * block, tile.k_begin + k + 32 * rank_, 0,
                          b + static_cast<uint32_t>(block * kLineBlockBytes + rank_ * (kLineBlockBytes / 2)), full,
                          kBothBlocks);
    }
  }

  __device__ static int line() { return static_cast<int>(threadIdx.x % 128) / 8; }
  __device__ static int unit() { return static_cast<int>(threadIdx.x) % 8; }

  /// Each of the 8 threads that copy a line reads the row indices of one of the next 8 steps, since a step is shorter
  /// than the latency of global memory. Beyond the group row 0 stands in, whose copy ClearOtherGroup zeroes.
  __device__ void request_rows(RowRange range, int first_step) {
    const int32_t* rows = f_.p_rows + range.begin;
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      const int row = (first_step + unit()) * kTileK + line() + i * kRowsApart;
      requested_[i] = row < range.count ? rows[row] : 0;
    }
  }
  __device__ void take_requested() {
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) rows_[i] = requested_[i];
  }

  /// Copies this thread's 16 bytes of its lines, of which `columns` are in the tile, from the thread's first one on.
  __device__ void gather_rows(const char* from, int columns, int requested_step) {
    const int holder = static_cast<int>(threadIdx.x) % 32 / kRequested * kRequested + requested_step;
    const char* rows[kRowsEach];
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      const auto row = static_cast<uint32_t>(__shfl_sync(0xffffffffu, rows_[i], holder));
      rows[i] = from + uint64_t{row} * (static_cast<uint32_t>(f_.p_width) * 2);
    }
    const uint32_t to = shared_.a(at_.stage) + static_cast<uint32_t>(line() * 128 + ((unit() ^ (line() % 8)) * 16));
#pragma unroll
    for (int block = 0; block < kTileM / kBlockM; ++block) {
      if (block * kBlockM >= columns) break;
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        cp_async_16(to + static_cast<uint32_t>(block * kLineBlockBytes + i * kRowsApart * 128),
                    rows[i] + block * kLineBytes);
      }
    }
    barrier_arrive_after_copies(shared_.full(at_.stage));
  }

  const WeightFactors& f_;
  const SharedMemory& shared_;
  int rank_;
  RingPosition<kStages> at_;
  int rows_[kRowsEach], requested_[kRowsEach];
};

/// Zeroes the lines beyond a group's rows in both operands, where TMA has copied rows of the next group, and the gather
/// row 0.
class ClearOtherGroup {
 public:
  __device__ ClearOtherGroup(const SharedMemory& shared, const Turns& turns, int rows, int warpgroup, bool gathered)
      : shared_(shared), turns_(turns), rows_(rows), warpgroup_(warpgroup), gathered_(gathered) {}

  __device__ void last() const { turns_.pass(); }

  __device__ void prepare(int stage, int step) const {
    const int first = rows_ - step * kTileK;
    if (gathered_) fence_for_async_reads();
    if (first >= kTileK) return;
    // Each thread has one unit and every 16th line: divisions would take longer than a step's products.
    constexpr int kApart = 16, kLineBlocks = kStageBytes / kLineBlockBytes;
    const int unit = static_cast<int>(threadIdx.x) % 8, own_line = static_cast<int>(threadIdx.x) % 128 / 8;
    const uint32_t to = shared_.a(stage) + static_cast<uint32_t>(own_line * kLineBytes + unit * 16);
#pragma unroll
    for (int line = 0; line < kTileK; line += kApart) {
      if (line + own_line < first) continue;
#pragma unroll
      for (int block = 0; block < kLineBlocks; ++block) {
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};\n" ::"r"(
                         to + static_cast<uint32_t>(block * kLineBlockBytes + line * kLineBytes)),
                     "r"(0)
                     : "memory");
      }
    }
    fence_for_async_reads();
    named_sync(1 + warpgroup_, 128);
  }

 private:
  const SharedMemory& shared_;
  const Turns& turns_;
  int rows_, warpgroup_;
  bool gathered_;
};

/// Calls write(to, v) for each 4 consecutive elements.
template <class T, bool kTransposed, class Write>
__device__ void write_sums(const WeightFactors& f, const WarpgroupSums<kTileN>& sums, const PairTile& tile,
                           uint32_t strip_address, const Write& write) {
  using Strip = WeightStrip<kTransposed>;
  const Strip strip(strip_address);
  const int warp_row = static_cast<int>(threadIdx.x) / 32 % 4 * 16;
  const int p = warp_row + strip.p, s = tile.n_tile * kTileN + strip.s;
  const int64_t stride = kTransposed ? f.p_width : f.s_width;  // from one step to the next
  T* to = static_cast<T*>(f.dw) + static_cast<int64_t>(tile.group) * f.p_width * f.s_width +
          (kTransposed ? s * stride + tile.m_begin + p : (tile.m_begin + p) * stride + s);
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const int rows = tile.m_count - block * kBlockM - p;
    if (block * kBlockM + warp_row >= tile.m_count) break;
    T* block_to = to + block * kBlockM * (kTransposed ? 1 : stride);
#pragma unroll
    for (int part = 0; part < kTileN / Strip::kColumns; ++part) {
      const int columns = f.s_width - s - part * Strip::kColumns;
      strip.put(sums[block], part);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < Strip::kGets; ++i) {
        const float4 v = strip.get(i);
        const int step = i * Strip::kStep;
        if ((kTransposed ? 0 : step) < rows && (kTransposed ? step : 0) < columns) write(block_to, v);
        block_to += Strip::kStep * stride;
      }
      block_to += kTransposed ? (Strip::kColumns - Strip::kGets * Strip::kStep) * stride
                              : Strip::kColumns - Strip::kGets * Strip::kStep * stride;
      __syncwarp();
    }
  }
}

template <class T>
__device__ void write_zeros(const WeightFactors& f, const PairTile& tile) {
  T* dw = static_cast<T*>(f.dw) + static_cast<int64_t>(tile.group) * f.p_width * f.s_width;
  const int columns = min(kTileN, f.s_width - tile.n_tile * kTileN);
  for (int i = static_cast<int>(threadIdx.x) % 128; i < tile.m_count * columns; i += 128) {
    // Consecutive threads write consecutive elements.
    const int row = f.transposed ? i % tile.m_count : i / columns,
              column = f.transposed ? i / tile.m_count : i % columns;
    const int64_t p = tile.m_begin + row, s = tile.n_tile * kTileN + column;
    dw[f.transposed ? s * f.p_width + p : p * f.s_width + s] = from_float<T>(0.0f);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1) grouped_weight_gradient(const __grid_constant__ WeightFactors f) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  const SharedMemory shared(memory);
  const int rank = static_cast<int>(cluster_rank());
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  const bool gathered = f.p_rows != nullptr;
  // One arrival for TMA, and one for each thread that gathers.
  if (threadIdx.x == 0) shared.init_barriers(gathered ? 1 + 128 : 1);
  WeightTiles tiles(shared.tile_list, f.offsets, f.groups, f.p_width, f.n_tiles, rank);
  cluster_sync();
  if (warpgroup == kConsumers) {
    fewer_registers<kWeightProducerRegisters>();
    WeightLoader(f, shared, rank).run(tiles);
    __syncwarp();
  } else {
    more_registers<kWeightConsumerRegisters>();
    const uint32_t strip = shared.strips + threadIdx.x / 32 * kStripBytes;
    WarpgroupSums<kTileN> sums;
    RingPosition<kStages> at;
    PairTile tile;
    Turns turns(shared, warpgroup);
    for (int index = 0; tiles.next(tile); ++index) {
      const int steps = steps_of(tile);
      if (index % kConsumers != warpgroup) {
        at.skip(steps);
        continue;
      }
      turns.wait();
      if (steps == 0) {
        turns.pass();
        if (!f.add) write_zeros<T>(f, tile);
        continue;
      }
      multiply_tile<true, true>(sums, shared, at, steps, tile.m_count, f.s_width - tile.n_tile * kTileN,
                                ClearOtherGroup(shared, turns, tile.k_count, warpgroup, gathered));
      const auto write_tile = [&](auto write) {
        f.transposed ? write_sums<T, true>(f, sums, tile, strip, write)
                     : write_sums<T, false>(f, sums, tile, strip, write);
      };
      if constexpr (std::is_same_v<T, float>) {
        f.add ? write_tile(AddToWeights{}) : write_tile(OverwriteWeights{});
      } else {
        write_tile(OverwriteWeights{});
      }
    }
  }
  cluster_sync();  // the other CTA may write to this one's shared memory until here
#endif
}

}  // namespace

bool hopper_can_run(const Context& context, const GroupedWgradArgs& args) {
  return kernel_tiers(context).grouped_gemm == Tier::kSm90 && args.groups.groups() <= kMaxGroups &&
         takes_rows(args.a) && takes_rows(args.b) && reinterpret_cast<uintptr_t>(args.dw.dst.data) % 16 == 0 &&
         !(args.a_rows.defined() && args.b_rows.defined());
}

void grouped_wgrad_hopper(const Context& context, const GroupedWgradArgs& args) {
  HONE_ASSERT(hopper_can_run(context, args));
  if (context.dry() || args.groups.groups() == 0) return;
  const bool transposed = args.b_rows.defined();
  const Tensor& p = transposed ? args.b : args.a;
  const Tensor& s = transposed ? args.a : args.b;
  const Tensor& p_rows = transposed ? args.b_rows : args.a_rows;
  WeightFactors f;
  f.groups = static_cast<int>(args.groups.groups());
  f.p_width = static_cast<int>(p.shape[1]);
  f.s_width = static_cast<int>(s.shape[1]);
  f.n_tiles = (f.s_width + kTileN - 1) / kTileN;
  f.p = matrix_map(p, 1, p.shape[0], f.p_width, kTileK);
  f.s = matrix_map(s, 1, s.shape[0], f.s_width, kTileK / 2);
  f.offsets = args.groups.offsets.as<int64_t>();
  if (p_rows.defined()) {
    f.gathered = elements<__nv_bfloat16>(p);
    f.p_rows = p_rows.as<int32_t>();
  }
  f.dw = args.dw.dst.data;
  f.transposed = transposed;
  f.add = args.dw.beta != 0.0f;
  const int64_t tiles = static_cast<int64_t>(f.groups) * f.n_tiles * ((f.p_width + kPairM - 1) / kPairM);
  cuda::dispatch_float(args.dw.dst.dtype, [&](auto element) {
    launch_pairs(context, "multiplying gradients of groups", grouped_weight_gradient<decltype(element)>,
                 WeightTiles::shared_size(f.groups), tiles, f);
  });
}

}  // namespace hone::cuda
