// Losses of bfloat16 rows that stay in registers: a cluster of up to 8 CTAs holds a row, which is read from memory once
// and written once. Clusters iterate over the rows; while one computes a row, TMA copies its next row to shared memory.
// Speed of the whole head: linear_cross_entropy_cuda.cu.
#include <cooperative_groups.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "kernels/cuda/sm90/tma_cuda.h"
#include "ops/linear_cross_entropy/loss_rows_cuda.h"

// For targets before Hopper the kernel is empty and its helpers unused.
#pragma nv_diag_suppress 177

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kSize = Pack<__nv_bfloat16>::kSize;
constexpr int kMostParts = 8;                  ///< the largest cluster that every Hopper GPU runs
constexpr uint32_t kLowestPair = 0xF180F180u;  ///< kLowestLogit, twice

/// Logits 2 i and 2 i + 1 of a pack.
__device__ inline float2 logits_of(const uint4& pack, int i) {
  const uint32_t pair = i == 0 ? pack.x : i == 1 ? pack.y : i == 2 ? pack.z : pack.w;
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
}

/// The pack with logits from `left` on replaced by kLowestLogit.
__device__ inline uint4 only_first(const uint4& pack, int left) {
  uint32_t words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (2 * i >= left) words[i] = kLowestPair;
    if (2 * i + 1 == left) words[i] = (words[i] & 0xFFFFu) | (kLowestPair & 0xFFFF0000u);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// A bulk copy to shared memory (TMA), one at a time: begin() is called by one thread, wait() by all.
struct Staging {
  uint64_t barrier;

  __device__ void init() { barrier_init(shared_address(&barrier), 1); }
  __device__ void begin(void* to, const void* from, uint32_t bytes) {
    sm90::fence_for_async_reads();  // after accesses of ordinary instructions
    sm90::barrier_arrive_expect(shared_address(&barrier), bytes);
    sm90::copy_bytes(shared_address(to), from, bytes, shared_address(&barrier));
  }
  __device__ void wait(uint32_t phase) { sm90::barrier_wait(shared_address(&barrier), phase); }
};

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

/// Distance between the packs of a thread, in logits.
constexpr int kStep = kThreads * kSize;

/// Uses bfloat16 pairs: the compiler would keep floats for the sums, in twice the registers.
__device__ inline float largest_of(const uint4& pack) {
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&pack);
  const __nv_bfloat162 pair = __hmax2(__hmax2(pairs[0], pairs[1]), __hmax2(pairs[2], pairs[3]));
  return fmaxf(to_float(pair.x), to_float(pair.y));
}

/// Maxima of a thread's packs except the one with the target, which is `target` logits from the thread's first one.
template <int kPacks>
__device__ inline RowSums largest_of(const uint4 (&packs)[kPacks], int target) {
  RowSums sums;
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const float largest = largest_of(packs[j]);
    sums.before = fmaxf(sums.before, j * kStep + kSize <= target ? largest : kLowestLogit);
    sums.rest = fmaxf(sums.rest, j * kStep > target ? largest : kLowestLogit);
  }
  return sums;
}

/// Maxima of the pack with the target, if this thread has it.
template <int kPacks>
__device__ inline RowSums largest_around(const uint4* staged, int target) {
  RowSums sums;
  if (target < 0 || target >= kPacks * kStep || target % kStep >= kSize) return sums;
  const auto* logits = reinterpret_cast<const __nv_bfloat16*>(staged + target / kStep * kThreads + threadIdx.x);
  for (int i = 0; i < kSize; ++i) {
    const float logit = to_float(logits[i]);
    sums.before = fmaxf(sums.before, i < target % kStep ? logit : kLowestLogit);
    sums.rest = fmaxf(sums.rest, i < target % kStep ? kLowestLogit : logit);
  }
  return sums;
}

/// Combines the parts of a row, one per lane; the result is in every lane.
template <bool kSmooth>
__device__ inline RowSums together(const RowSums& part) {
  RowSums whole;
  whole.before = warp_max(part.before);
  whole.rest = warp_max(part.rest);
  // Bounded, so that an empty part adds 0 and not 0 · infinity.
  const float below = fmaxf(part.largest() - whole.largest(), -1e30f);
  const double share = exp_of(below) * part.sum;
  whole.sum = warp_sum(share);
  whole.weighted = warp_sum(exp_of(below) * part.weighted + share * below);
  if constexpr (kSmooth) whole.logits = warp_sum(part.logits);
  return whole;
}

/// kPacks: packs per thread. A part of a row has `packs_of_part` packs; the last one has the rest.
template <int kPacks, bool kSmooth, bool kCapped>
__global__ void __launch_bounds__(kThreads, kPacks <= 10 ? 3 : 2)
    differentiate_kernel(LossRows<__nv_bfloat16> k, int packs_of_part) {
#if __CUDA_ARCH__ >= 900  // clusters
  extern __shared__ uint4 staged[];
  __shared__ Staging staging;
  __shared__ float2 maxima[kWarps];
  __shared__ double2 partial_sums[kWarps];
  __shared__ double partial_logits[kSmooth ? kWarps : 1];
  __shared__ RowSums of_part[2];
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  const int part = static_cast<int>(cluster.block_rank()), parts = static_cast<int>(cluster.num_blocks());
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int vocab = k.vocab, first = part * packs_of_part;
  const int packs_here = min(packs_of_part, (vocab + kSize - 1) / kSize - first);
  const int left = vocab % kSize != 0 && part == parts - 1 ? vocab % kSize : kSize;  // logits in the last pack
  const int first_column = (first + thread) * kSize;
  const auto stage = [&](int64_t row) {
    staging.begin(staged, k.logits + row * k.pitch + first * kSize, static_cast<uint32_t>(packs_here) * 16);
  };

  const int64_t stride = gridDim.x / parts;
  int64_t row = blockIdx.x / parts;
  if (thread == 0) {
    staging.init();
    stage(row);
  }
  for (int index = packs_here + thread; index < kPacks * kThreads; index += kThreads) {
    staged[index] = make_uint4(kLowestPair, kLowestPair, kLowestPair, kLowestPair);
  }
  __syncthreads();
  for (uint32_t phase = 0; row < k.rows; row += stride, phase ^= 1) {
    const int target = k.targets[row] - first_column;
    const float logit_of_target = target_logit(k, row);
    staging.wait(phase);
    if (left < kSize) {
      if (thread == 0) staged[packs_here - 1] = only_first(staged[packs_here - 1], left);
      __syncthreads();
    }
    uint4 packs[kPacks];
#pragma unroll
    for (int j = 0; j < kPacks; ++j) packs[j] = staged[j * kThreads + thread];
    const RowSums around = largest_around<kPacks>(staged, target);
    __syncthreads();
    if (thread == 0 && row + stride < k.rows) stage(row + stride);

    RowSums sums = largest_of(packs, target);
    const float2 of_warp =
        make_float2(warp_max(fmaxf(sums.before, around.before)), warp_max(fmaxf(sums.rest, around.rest)));
    if (lane == 0) maxima[warp] = of_warp;
    __syncthreads();
#pragma unroll
    for (int other = 0; other < kWarps; ++other) {
      sums.before = fmaxf(sums.before, maxima[other].x);
      sums.rest = fmaxf(sums.rest, maxima[other].y);
    }

    // With exponents to base 2, exp needs one instruction.
    float sum = 0.0f, weighted = 0.0f, total = 0.0f;
    const float offset_of_part = -sums.largest() * kLog2E;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
#pragma unroll
      for (int i = 0; i < kSize / 2; ++i) {
        const float2 pair = logits_of(packs[j], i);
        const float below_x = fmaf(pair.x, kLog2E, offset_of_part), below_y = fmaf(pair.y, kLog2E, offset_of_part);
        const float exp_x = exp2_approximate(below_x), exp_y = exp2_approximate(below_y);
        sum += exp_x + exp_y;
        weighted += exp_x * below_x + exp_y * below_y;
        if constexpr (kSmooth) {
          total += (pair.x == kLowestLogit ? 0.0f : pair.x) + (pair.y == kLowestLogit ? 0.0f : pair.y);
        }
      }
    }
    weighted *= 0.6931471805599453f;
    const double2 sums_of_warp =
        make_double2(warp_sum(static_cast<double>(sum)), warp_sum(static_cast<double>(weighted)));
    if (lane == 0) partial_sums[warp] = sums_of_warp;
    if constexpr (kSmooth) {
      const double logits_of_warp = warp_sum(static_cast<double>(total));
      if (lane == 0) partial_logits[warp] = logits_of_warp;
    }
    __syncthreads();
    if (thread == 0) {
      for (int other = 0; other < kWarps; ++other) {
        sums.sum += partial_sums[other].x;
        sums.weighted += partial_sums[other].y;
        if constexpr (kSmooth) sums.logits += partial_logits[other];
      }
      of_part[phase] = sums;  // the other one may still be read by CTAs that are one row behind
    }
    cluster.sync();

    RowSums of_lane;
    if (lane < parts) of_lane = *cluster.map_shared_rank(&of_part[phase], static_cast<unsigned>(lane));
    const RowSums whole = together<kSmooth>(of_lane);
    if (part == 0 && thread == 0) write_result<kSmooth>(k, row, whole, logit_of_target);
    if (!k.wants_grad) continue;
    const LabelGradient label = label_gradient<kSmooth>(k, row, logit_of_target);
    const float offset = -whole.largest() * kLog2E;
    const auto share = static_cast<float>(label.scale / whole.sum);
    const float inverse_cap = kCapped ? 1.0f / k.soft_cap : 0.0f;
    __nv_bfloat16* logits = k.logits + row * k.pitch + first_column;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      if (j * kThreads + thread >= packs_here) continue;
      Pack<__nv_bfloat16> gradient;
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const float2 pair = logits_of(packs[j], i / 2);
        const float logit = i % 2 == 0 ? pair.x : pair.y;
        const float softmax = share * exp2_approximate(fmaf(logit, kLog2E, offset));
        const float smoothed = kSmooth ? softmax - label.of_all : softmax;
        const float of_capped = smoothed - (j * kStep + i == target ? label.of_target : 0.0f);
        gradient.values[i] = __float2bfloat16_rn(of_capped * slope_of_cap<kCapped>(logit, inverse_cap));
      }
      store_pack(logits + j * kStep, gradient);
    }
  }
  cluster.sync();  // no CTA exits before the others have read its shared memory
#endif
}

/// Number of clusters that a GPU runs concurrently, by packs per thread, CTAs per cluster, label smoothing and cap.
struct ResidentClusters {
  std::map<std::tuple<int, int, bool, bool>, int> count;
};

template <int kPacks, bool kSmooth, bool kCapped>
void launch(const Context& context, const LossRows<__nv_bfloat16>& rows, int parts) {
  const int packs = (rows.vocab + kSize - 1) / kSize, packs_of_part = (packs + parts - 1) / parts;
  constexpr int kStagedBytes = kPacks * kThreads * 16;
  const auto kernel = differentiate_kernel<kPacks, kSmooth, kCapped>;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(parts);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks_for(rows.rows * parts, 1);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = kStagedBytes;
  config.stream = stream_of(context);
  config.attrs = &cluster;
  config.numAttrs = 1;
  int& resident = queue_of(context).state<ResidentClusters>().count[{kPacks, parts, kSmooth, kCapped}];
  if (resident == 0) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kStagedBytes),
          "requesting shared memory");
    check(cudaOccupancyMaxActiveClusters(&resident, kernel, &config), "querying clusters");
  }
  config.gridDim = blocks_for(std::min<int64_t>(rows.rows, std::max(resident, 1)) * parts, 1);
  check(cudaLaunchKernelEx(&config, kernel, rows, packs_of_part), "computing losses");
}

template <int kPacks>
using Packs = std::integral_constant<int, kPacks>;

}  // namespace

bool differentiate_rows_hopper(const Context& context, const LossRows<__nv_bfloat16>& rows) {
  const auto packs_of = [&](int parts) {
    const int block = parts * kThreads * kSize;
    return (rows.vocab + block - 1) / block;
  };
  // 10 packs leave registers for three CTAs per multiprocessor; 16 for two.
  int parts = 1;
  while (parts < kMostParts && packs_of(parts) > 10) parts *= 2;
  const int packs = packs_of(parts);
  const auto launched = [&](auto most) {
    if (packs > most()) return false;
    const auto start = [&](auto capped) {
      rows.label_smoothing > 0 ? launch<most(), true, capped()>(context, rows, parts)
                               : launch<most(), false, capped()>(context, rows, parts);
    };
    rows.soft_cap > 0 ? start(std::true_type()) : start(std::false_type());
    return true;
  };
  return launched(Packs<2>()) || launched(Packs<4>()) || launched(Packs<6>()) || launched(Packs<8>()) ||
         launched(Packs<10>()) || launched(Packs<16>());
}

}  // namespace hone::cuda
