#include <algorithm>

#include "core/stream/cuda_launch.h"
#include "ops/moe_experts/moe_experts.h"

namespace hone::cuda {

namespace {

// A stable counting sort. A chunk of choices belongs to one warp, which processes them in order, 32 at a time. So a
// choice's position among equal ones is the count of those before it, independent of the order of atomics.
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int64_t kMaxExperts = 3072;  // counts of all warps of a block in 48 KiB of shared memory

// Few choices, as a pass of generation has them, are sorted by one CTA: four kernels would take four times as long.
constexpr int kFewWarps = 32, kFewThreads = 32 * kFewWarps;
constexpr int64_t kFewChoices = 4096;
constexpr int64_t kFewCounts = 48 * 1024 / sizeof(int) - kFewWarps;  // for all chunks, beside a sum of each warp

struct Chunks {
  int64_t choices, per_chunk, count;

  Chunks(int64_t all, int64_t least, int64_t most) : choices(all) {
    per_chunk = std::max<int64_t>(least, (all + most - 1) / most);
    count = std::max<int64_t>(1, (all + per_chunk - 1) / per_chunk);
  }
  /// A warp processes its choices sequentially, so chunks are short; at most 4096 chunks, whose counts are scanned.
  static Chunks of_many(int64_t all) { return {all, 128, 4096}; }
  /// The chunks of one CTA's warps.
  static Chunks of_few(int64_t all) { return {all, 32, kFewWarps}; }
};

/// The experts that are here: [first, first + count) of `all`.
struct Block {
  int first, count, all;
};

/// In place of an expert: a choice of another rank's expert, and a lane without a choice.
constexpr int32_t kElsewhere = -1, kNoChoice = -2;

/// Calls f(index, expert, rank, equals) for the choices of this warp's chunk: expert is that of the block, or one of
/// the values above; rank is the number of earlier lanes with the same expert, equals that of all lanes. Traps on an id
/// outside [0, all).
template <class F>
__device__ void for_each_choice(const int32_t* ids, const Chunks& chunks, int64_t chunk, const Block& block, F f) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t begin = chunk * chunks.per_chunk;
  const int64_t last = begin + chunks.per_chunk;
  const int64_t end = last < chunks.choices ? last : chunks.choices;
  for (int64_t first = begin; first < end; first += 32) {
    int32_t expert = kNoChoice;
    if (first + lane < end) {
      const int32_t id = ids[first + lane];
      if (id < 0 || id >= block.all) __trap();
      const bool here = id >= block.first && id < block.first + block.count;
      expert = here ? id - block.first : kElsewhere;
    }
    const unsigned same = __match_any_sync(0xffffffffu, expert);
    f(first + lane, expert, __popc(same & ((1u << lane) - 1)), __popc(same));
    __syncwarp();
  }
}

/// Σ value over the lanes of the warp up to `lane`, this one.
template <class T>
__device__ inline T sum_up_to_lane(T value, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T lower = __shfl_up_sync(0xffffffffu, value, step);
    if (lane >= step) value += lower;
  }
  return value;
}

/// count[e] = choices of expert e in the chunk of this warp.
__device__ inline void count_choices(const int32_t* ids, const Chunks& chunks, int64_t chunk, const Block& block,
                                     int* count) {
  for (int e = static_cast<int>(threadIdx.x) % 32; e < block.count; e += 32) count[e] = 0;
  __syncwarp();
  for_each_choice(ids, chunks, chunk, block, [&](int64_t, int32_t expert, int rank, int equals) {
    if (expert >= 0 && rank == 0) count[expert] += equals;
  });
}

/// counts[e, chunk] = choices of expert e in the chunk.
__global__ void __launch_bounds__(kThreads) count_kernel(const int32_t* ids, Chunks chunks, Block block, int* counts) {
  extern __shared__ int shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t chunk = int64_t{blockIdx.x} * kWarps + warp;
  if (chunk >= chunks.count) return;
  int* count = shared + warp * block.count;
  count_choices(ids, chunks, chunk, block, count);
  for (int e = lane; e < block.count; e += 32) counts[e * chunks.count + chunk] = count[e];
}

/// One CTA per expert: counts[e, chunk] becomes the choices of e in earlier chunks; totals[e] those in all chunks.
__global__ void __launch_bounds__(kThreads) scan_chunks_kernel(int* counts, int64_t chunks, int* totals) {
  __shared__ int sums[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int* count = counts + blockIdx.x * chunks;
  int before = 0;
  for (int64_t first = 0; first < chunks; first += kThreads) {
    const int64_t chunk = first + threadIdx.x;
    const int own = chunk < chunks ? count[chunk] : 0;
    int up_to = sum_up_to_lane(own, lane);
    if (lane == 31) sums[warp] = up_to;
    __syncthreads();
    int all = 0;
#pragma unroll
    for (int other = 0; other < kWarps; ++other) {
      if (other < warp) up_to += sums[other];
      all += sums[other];
    }
    if (chunk < chunks) count[chunk] = before + up_to - own;
    before += all;
    __syncthreads();
  }
  if (threadIdx.x == 0) totals[blockIdx.x] = before;
}

/// offsets[e] = Σ totals before e, computed by one warp.
__global__ void offsets_kernel(const int* totals, int experts, int64_t* offsets) {
  const int lane = static_cast<int>(threadIdx.x);
  int64_t before = 0;
  for (int first = 0; first < experts; first += 32) {
    const int64_t own = first + lane < experts ? totals[first + lane] : 0;
    const int64_t up_to = sum_up_to_lane(own, lane);
    if (first + lane < experts) offsets[first + lane] = before + up_to - own;
    before += __shfl_sync(0xffffffffu, up_to, 31);
  }
  if (lane == 0) offsets[experts] = before;
}

struct RowOrder {
  int64_t* offsets;
  int32_t *token, *assignment, *row;
  int64_t k;
};

/// Gives the choices of this warp's chunk their rows; next[e] is the first one of expert e.
__device__ void place_choices(const int32_t* ids, const Chunks& chunks, int64_t chunk, const Block& block, int* next,
                              const RowOrder& order) {
  for_each_choice(ids, chunks, chunk, block, [&](int64_t index, int32_t expert, int rank, int equals) {
    const int first = expert >= 0 ? next[expert] : 0;
    __syncwarp();
    if (expert == kElsewhere) order.row[index] = -1;
    if (expert < 0) return;
    if (rank == 0) next[expert] = first + equals;
    const int row = first + rank;
    order.token[row] = static_cast<int32_t>(index / order.k);
    order.assignment[row] = static_cast<int32_t>(index);
    order.row[index] = row;
  });
}

__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const int32_t* ids, Chunks chunks, Block block, const int* counts, RowOrder order) {
  extern __shared__ int shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t chunk = int64_t{blockIdx.x} * kWarps + warp;
  if (chunk >= chunks.count) return;
  int* next = shared + warp * block.count;
  for (int e = lane; e < block.count; e += 32) {
    next[e] = static_cast<int>(order.offsets[e]) + counts[e * chunks.count + chunk];
  }
  __syncwarp();
  place_choices(ids, chunks, chunk, block, next, order);
}

/// All of the above in one CTA: a warp has a chunk, a thread an expert.
__global__ void __launch_bounds__(kFewThreads)
    sort_few_kernel(const int32_t* ids, Chunks chunks, Block block, RowOrder order) {
  extern __shared__ int shared[];  // [chunks, experts]
  __shared__ int sums[kFewWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int chunk_count = static_cast<int>(chunks.count), e = static_cast<int>(threadIdx.x);
  int* own = shared + warp * block.count;
  if (warp < chunk_count) count_choices(ids, chunks, warp, block, own);
  __syncthreads();
  int total = 0;
  if (e < block.count) {
    for (int chunk = 0; chunk < chunk_count; ++chunk) total += shared[chunk * block.count + e];
  }
  int up_to = sum_up_to_lane(total, lane);
  if (lane == 31) sums[warp] = up_to;
  __syncthreads();
  for (int other = 0; other < warp; ++other) up_to += sums[other];
  if (e < block.count) {
    int next = up_to - total;
    order.offsets[e] = next;
    if (e == block.count - 1) order.offsets[block.count] = up_to;
    for (int chunk = 0; chunk < chunk_count; ++chunk) {
      int& count = shared[chunk * block.count + e];
      const int of_chunk = count;
      count = next;
      next += of_chunk;
    }
  }
  __syncthreads();
  if (warp < chunk_count) place_choices(ids, chunks, warp, block, own, order);
}

}  // namespace

void moe_permutation(const Context& context, const ExpertRowsArgs& args) {
  const int64_t choices = args.ids.numel(), experts = args.rows.offsets.numel() - 1;
  const Chunks chunks = Chunks::of_many(choices);
  HONE_ASSERT(experts <= kMaxExperts);
  ArenaScope scratch(context.scratch());
  const Tensor counts = scratch.take({experts, chunks.count}, DType::kI32);
  const Tensor totals = scratch.take({experts}, DType::kI32);
  if (context.dry()) return;
  const cudaStream_t stream = stream_of(context);
  const auto* ids = args.ids.as<int32_t>();
  const int count = static_cast<int>(experts);
  const Block block{static_cast<int>(args.rows.first_expert), count,
                    args.rows.partial() ? static_cast<int>(args.rows.all_experts) : count};
  const RowOrder order{args.rows.offsets.as<int64_t>(), args.rows.token.as<int32_t>(),
                       args.rows.assignment.as<int32_t>(), args.rows.row.as<int32_t>(), args.ids.shape[1]};
  if (const Chunks few = Chunks::of_few(choices); choices <= kFewChoices && few.count * experts <= kFewCounts) {
    const size_t shared = static_cast<size_t>(few.count * experts) * sizeof(int);
    sort_few_kernel<<<1, kFewThreads, shared, stream>>>(ids, few, block, order);
    return check_launch("sorting few tokens by expert");
  }
  const unsigned blocks = blocks_for(chunks.count, kWarps);
  const size_t shared = static_cast<size_t>(kWarps * experts) * sizeof(int);
  count_kernel<<<blocks, kThreads, shared, stream>>>(ids, chunks, block, counts.as<int32_t>());
  scan_chunks_kernel<<<blocks_for(experts, 1), kThreads, 0, stream>>>(counts.as<int32_t>(), chunks.count,
                                                                      totals.as<int32_t>());
  offsets_kernel<<<1, 32, 0, stream>>>(totals.as<int32_t>(), count, order.offsets);
  scatter_kernel<<<blocks, kThreads, shared, stream>>>(ids, chunks, block, counts.as<int32_t>(), order);
  check_launch("sorting tokens by expert");
}

}  // namespace hone::cuda
