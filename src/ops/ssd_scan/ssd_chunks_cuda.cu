// The state-space scan by chunks: steps, states and outputs (ssd_chunks_cuda.h).
#include "ops/ssd_scan/ssd_chunks_cuda.h"

namespace hone::cuda {

namespace {

// -- Steps

constexpr int kStepWarps = 8;

/// A warp per chunk and head, two tokens per lane.
__global__ void __launch_bounds__(32 * kStepWarps)
    steps_kernel(const SsdArguments<Half> in, int64_t pairs, SsdSteps* steps) {
  const int64_t pair = int64_t{blockIdx.x} * kStepWarps + threadIdx.x / 32;
  if (pair >= pairs) return;
  const int head = static_cast<int>(pair % in.heads), lane = static_cast<int>(threadIdx.x) % 32;
  const SsdPlace place = in.place(pair / in.heads);
  if (place.rows == 0) return;
  float delta[2] = {};
  double g[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (2 * lane + i >= place.rows) continue;
    const SsdStep step = in.step(place.row + 2 * lane + i, head);
    delta[i] = step.delta;
    g[i] = static_cast<double>(step.g) * 1.4426950408889634;
  }
  double sum = g[0] + g[1];
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const double other = __shfl_up_sync(0xffffffffu, sum, offset);
    if (lane >= offset) sum += other;
  }
  const double last = __shfl_sync(0xffffffffu, sum, 31), sums[2] = {sum - g[1], sum};
  SsdSteps& to = steps[pair];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = 2 * lane + i;
    to.sums[token] = static_cast<float>(sums[i]);
    to.delta[token] = delta[i];
    to.grown[token] = token < place.rows ? exp2f(static_cast<float>(sums[i])) : 0.0f;
    to.into[token] = exp2f(static_cast<float>(last - sums[i])) * delta[i];
  }
}

// -- States

constexpr int kStateThreads = 256, kStateStages = 3;

struct StateStage {
  Half keys[kSsdTokens * kSsdWide], values[kSsdTokens * kSsdNarrow];
  SsdSteps steps;
};
static_assert(kStateStages * sizeof(StateStage) <= kLeastSsdShared);

/// A CTA per document and head: S before each chunk but the first, or (blockIdx.y = 1) Z after each but the last. A
/// warp has 16 rows of the state.
__global__ void __launch_bounds__(kStateThreads, 2)
    states_kernel(const SsdArguments<Half> in, const Half* dout, const SsdChunkBuffers buffers) {
  extern __shared__ uint4 memory[];
  auto* const stages = reinterpret_cast<StateStage*>(memory);
  const bool back = blockIdx.y == 1;
  const int head = static_cast<int>(blockIdx.x) % in.heads, document = static_cast<int>(blockIdx.x) / in.heads;
  const int64_t begin = in.cu_seqlens[document], slot = begin / kSsdTokens;
  const int length = static_cast<int>(in.cu_seqlens[document + 1] - begin);
  const int updates = (length + kSsdTokens - 1) / kSsdTokens - 1;
  if (updates <= 0) return;
  const SsdSteps* const steps = buffers.steps + (slot + document) * in.heads + head;
  const Half* const keys = in.xbc + (back ? in.c(begin, in.group_of(head)) : in.b(begin, in.group_of(head)));
  const Half* const values = back ? dout + in.output(begin, head) : in.xbc + in.x(begin, head);
  const int64_t values_stride = back ? int64_t{in.heads} * kSsdDim : in.width;
  const auto chunk_of = [&](int n) { return back ? updates - n : n; };
  const auto copy = [&](int n) {
    if (n < updates) {
      const int chunk = chunk_of(n), row = chunk * kSsdTokens, valid = min(kSsdTokens, length - row);
      StateStage& stage = stages[n % kStateStages];
      copy_rows<kSsdTokens, kSsdSize, kStateThreads>(stage.keys, keys + row * in.width, in.width, valid);
      copy_rows<kSsdTokens, kSsdDim, kStateThreads>(stage.values, values + row * values_stride, values_stride, valid);
      copy_steps<kStateThreads>(stage.steps, steps[int64_t{chunk} * in.heads]);
    }
    cp_async_commit();
  };
  const int row = static_cast<int>(threadIdx.x) / 32 * 16;
  Sums<1, kSsdDim / 8> state = {};
#pragma unroll
  for (int n = 0; n < kStateStages - 1; ++n) copy(n);
  for (int n = 0; n < updates; ++n) {
    cp_async_wait<kStateStages - 2>();
    __syncthreads();
    copy(n + kStateStages - 1);  // where chunk n − 1 was
    const StateStage& stage = stages[n % kStateStages];
    const float* const factors = back ? stage.steps.grown : stage.steps.into;
    const float growth = exp2_approximate(stage.steps.sums[kSsdTokens - 1]);
    for_pairs(state, [&](int, int, float& first, float& second) { first *= growth, second *= growth; });
#pragma unroll
    for (int depth = 0; depth < kSsdTokens; depth += 16) {
      uint32_t high[4], low[4];
      ByDepth<kSsdSize>{stage.keys}.load_first(high, row, depth);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 factor = *reinterpret_cast<const float2*>(factors + depth + sum_column() + i / 2 * 8);
        const float2 key = unpack_bf16(high[i]);
        const float first = key.x * factor.x, second = key.y * factor.y;
        high[i] = pack_bf16(first, second);
        const float2 rounded = unpack_bf16(high[i]);
        low[i] = pack_bf16(first - rounded.x, second - rounded.y);
      }
#pragma unroll
      for (int n8 = 0; n8 < kSsdDim / 8; n8 += 2) {
        uint32_t value[4];
        ByDepth<kSsdDim>{stage.values}.load_second(value, 8 * n8, depth);
        mma_m16n8k16(state[0][n8], high, value[0], value[1]);
        mma_m16n8k16(state[0][n8 + 1], high, value[2], value[3]);
        mma_m16n8k16(state[0][n8], low, value[0], value[1]);
        mma_m16n8k16(state[0][n8 + 1], low, value[2], value[3]);
      }
    }
    Half* const to = (back ? buffers.dstates : buffers.states) + in.state(slot + chunk_of(n) - (back ? 1 : 0), head);
    store_sums<kSsdDim / 32, false>(to + row * kSsdDim, kSsdDim, state, 16);
  }
}

// -- Outputs

constexpr int kOutputThreads = 32 * kSsdWarps;

struct OutputStage {
  Half state[kSsdSize * kSsdNarrow], x[kSsdTokens * kSsdNarrow];
  SsdSteps steps;
};
union OutputShared {
  OutputStage stages[2];
  SsdKeyTiles keys;
};
static_assert(sizeof(OutputShared) <= kLeastSsdShared);

/// A warp has 16 tokens of the chunk.
__global__ void __launch_bounds__(kOutputThreads, 3)
    outputs_kernel(const SsdArguments<Half> in, const SsdChunkBuffers buffers, Half* out) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<OutputShared*>(memory);
  const SsdBlock at(in, buffers, blockIdx.x);
  const SsdPlace& place = at.place;
  if (place.rows == 0) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, row = 16 * warp;
  copy_rows<kSsdTokens, kSsdSize, kOutputThreads>(shared.keys.b, in.xbc + in.b(place.row, at.group), in.width,
                                                  place.rows);
  copy_rows<kSsdTokens, kSsdSize, kOutputThreads>(shared.keys.c, in.xbc + in.c(place.row, at.group), in.width,
                                                  place.rows);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  Sums<1, kSsdTokens / 8> products = {};
  uint32_t c[kSsdSize / 16][4];
#pragma unroll
  for (int k = 0; k < kSsdSize / 16; ++k) {
    ByRow<kSsdSize>{shared.keys.c}.load_first(c[k], row, 16 * k);
#pragma unroll
    for (int tile = 0; tile < kSsdWarps; ++tile) {
      if (tile > warp) break;
      uint32_t b[4];
      ByRow<kSsdSize>{shared.keys.b}.load_second(b, 16 * tile, 16 * k);
      mma_m16n8k16(products[0][2 * tile], c[k], b[0], b[1]);
      mma_m16n8k16(products[0][2 * tile + 1], c[k], b[2], b[3]);
    }
  }
  __syncthreads();
  const auto copy = [&](int head) {
    if (head < at.end) {
      OutputStage& stage = shared.stages[(head - at.begin) % 2];
      copy_rows<kSsdTokens, kSsdDim, kOutputThreads>(stage.x, in.xbc + in.x(place.row, head), in.width, place.rows);
      copy_steps<kOutputThreads>(stage.steps, buffers.steps[at.item * in.heads + head]);
      if (!place.first()) {
        copy_rows<kSsdSize, kSsdDim, kOutputThreads>(stage.state, buffers.states + in.state(place.after - 1, head),
                                                     kSsdDim, kSsdSize);
      }
    }
    cp_async_commit();
  };
  copy(at.begin);
  for (int head = at.begin; head < at.end; ++head) {
    cp_async_wait<0>();
    __syncthreads();
    copy(head + 1);
    const OutputStage& stage = shared.stages[(head - at.begin) % 2];
    const SsdSteps& steps = stage.steps;
    Sums<1, kSsdDim / 8> sums = {};
    if (!place.first()) {
#pragma unroll
      for (int k = 0; k < kSsdSize / 16; ++k) {
#pragma unroll
        for (int n = 0; n < kSsdDim / 8; n += 2) {
          uint32_t state[4];
          ByDepth<kSsdDim>{stage.state}.load_second(state, 8 * n, 16 * k);
          mma_m16n8k16(sums[0][n], c[k], state[0], state[1]);
          mma_m16n8k16(sums[0][n + 1], c[k], state[2], state[3]);
        }
      }
      for_pairs(sums, [&](int r, int, float& first, float& second) {
        const float grown = steps.grown[row + r];
        first *= grown, second *= grown;
      });
    }
    const float own[2] = {steps.sums[row + sum_row(0)], steps.sums[row + sum_row(2)]};
#pragma unroll
    for (int tile = 0; tile < kSsdWarps; ++tile) {
      if (tile > warp) break;
      uint32_t p[4];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int column = 16 * tile + 8 * part + sum_column();
        const float2 sum = *reinterpret_cast<const float2*>(steps.sums + column);
        const float2 delta = *reinterpret_cast<const float2*>(steps.delta + column);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = row + sum_row(2 * half);
          const auto& product = products[0][2 * tile + part];
          const float first = product[2 * half] * exp2_approximate(own[half] - sum.x) * delta.x;
          const float second = product[2 * half + 1] * exp2_approximate(own[half] - sum.y) * delta.y;
          p[2 * part + half] = pack_bf16(column <= i ? first : 0.0f, column + 1 <= i ? second : 0.0f);
        }
      }
#pragma unroll
      for (int n = 0; n < kSsdDim / 8; n += 2) {
        uint32_t x[4];
        ByDepth<kSsdDim>{stage.x}.load_second(x, 8 * n, 16 * tile);
        mma_m16n8k16(sums[0][n], p, x[0], x[1]);
        mma_m16n8k16(sums[0][n + 1], p, x[2], x[3]);
      }
    }
    const float skip = in.d.at(head);
    for_pairs(sums, [&](int r, int column, float& first, float& second) {
      const float2 x = load_pair(stage.x + (row + r) * kSsdNarrow + column);
      first = fmaf(skip, x.x, first), second = fmaf(skip, x.y, second);
    });
    store_sums<kSsdDim / 32, false>(out + in.output(place.row + row, head), int64_t{in.heads} * kSsdDim, sums,
                                    place.rows - row);
  }
}

}  // namespace

void find_ssd_chunk_states(cudaStream_t stream, const SsdScanArgs& args, const Half* dout,
                           const SsdChunkScratch& scratch) {
  const SsdArguments<Half> in(args);
  const SsdChunkBuffers buffers(args.heads, scratch);
  const int64_t pairs = ssd_items(args) * args.heads.num_heads;
  steps_kernel<<<blocks_for(pairs, kStepWarps), 32 * kStepWarps, 0, stream>>>(in, pairs, buffers.steps);
  check_launch("computing steps of the state-space scan");
  constexpr size_t kShared = kStateStages * sizeof(StateStage);
  allow_shared_memory(&states_kernel, kShared);
  const dim3 grid(blocks_for(args.sequences.num_documents * args.heads.num_heads, 1), dout == nullptr ? 1 : 2);
  states_kernel<<<grid, kStateThreads, kShared, stream>>>(in, dout, buffers);
  check_launch("carrying states");
}

void scan_ssd_chunks(cudaStream_t stream, const SsdScanArgs& args, const SsdChunkScratch& scratch) {
  find_ssd_chunk_states(stream, args, nullptr, scratch);
  const SsdArguments<Half> in(args);
  const SsdChunkBuffers buffers(args.heads, scratch);
  allow_shared_memory(&outputs_kernel, sizeof(OutputShared));
  const unsigned grid = blocks_for(ssd_items(args) * args.heads.num_groups * buffers.blocks, 1);
  outputs_kernel<<<grid, kOutputThreads, sizeof(OutputShared), stream>>>(in, buffers, elements<Half>(args.out));
  check_launch("scanning states");
}

}  // namespace hone::cuda
