// A cluster of 8 CTAs has 128 rows of a weight, each CTA an eighth of k, so that a few thousand rows keep all
// multiprocessors at the memory's rate. A warp has 16 rows in registers (weight_rows_cuda.h) and multiplies them with
// all rows of a, whose slice is in shared memory. Then the CTAs add their sums, each for an eighth of the rows of a,
// through the cluster's shared memory, in the order of the slices.
#include "kernels/cuda/matmul/few_rows_matmul.h"

#include <cooperative_groups.h>

#include <climits>
#include <type_traits>

#include "core/stream/cuda_launch.h"
#include "kernels/cuda/sm80/weight_rows_cuda.h"
#include "kernels/cuda/tiers.h"

namespace hone::cuda {

namespace {

using namespace weight_rows;
using bf16 = __nv_bfloat16;

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kColumns = kWarps * kWarpRows;  // rows of a weight, columns of c
constexpr int kSlices = 8;                    // of k: the largest cluster that every Hopper GPU runs
constexpr int kMostTiles = kMostFewRows / kTileRows;
constexpr int kSumPitch = kColumns + 4;  // floats; a warp that stores its sums uses all banks
constexpr int64_t kLeastK = 512, kMostK = 4096, kMostColumns = 16384;
constexpr int kRowPitch = staged_pitch(static_cast<int>(kMostK) / kSlices);  // bytes, of a row of a
static_assert(kRowPitch >= kSumPitch * static_cast<int>(sizeof(float)));

struct FewRowsMatmul {
  const bf16* a;
  const bf16* b[kMostFewRowsWeights];
  bf16* c[kMostFewRowsWeights];
  int n[kMostFewRowsWeights];
  int first[kMostFewRowsWeights];  // the first cluster of a weight; INT_MAX: no weight
  int rows, k;
  int steps;  // of k
};

/// The columns of a CTA and of its thread.
struct Place {
  int slice, part, column;
  int warp, lane;

  __device__ Place(const FewRowsMatmul& p, int block, int thread)
      : slice(block % kSlices), warp(thread / 32), lane(thread % 32) {
    const int cluster = block / kSlices;
    part = (cluster >= p.first[1]) + (cluster >= p.first[2]);
    column = (cluster - p.first[part]) * kColumns;
  }
};

/// Bytes of shared memory: a slice of the rows of a, then the sums.
constexpr size_t shared_bytes(int tiles) { return static_cast<size_t>(tiles * kTileRows * kRowPitch); }

/// Steps of k that a warp has in flight are kStages. With two of them three CTAs fit on a multiprocessor.
template <int kTiles, int kStages>
__global__ void __launch_bounds__(kThreads, kStages > 2 ? 2 : 3)
    few_rows_matmul_kernel(const __grid_constant__ FewRowsMatmul p) {
#if __CUDA_ARCH__ >= 900  // clusters
  extern __shared__ uint4 memory[];
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const auto [slice, part, column, warp, lane] = Place(p, block, thread);
  const int first_step = p.steps * slice / kSlices, steps = p.steps * (slice + 1) / kSlices - first_step;

  const bf16* upper =
      p.b[part] + int64_t{column + warp * kWarpRows + lane / 4} * p.k + first_step * kStep + lane % 4 * 8;
  WeightRows w{upper, upper + int64_t{kTileRows} * p.k};
  WeightStep ring[kStages];
#pragma unroll
  for (int step = 0; step < kStages; ++step) ring[step].load(w, step, step < steps);

  for (int row = warp; row < kTiles * kTileRows; row += kWarps) {
    const bool exists = row < p.rows;
    const bf16* from = p.a + int64_t{exists ? row : 0} * p.k + first_step * kStep;
    const uint32_t to = shared_address(memory) + static_cast<uint32_t>(row * kRowPitch);
    for (int unit = lane; unit < steps * (kStep / 8); unit += 32) {
      cp_async_16(to + static_cast<uint32_t>(unit) * 16, from + unit * 8, exists);
    }
  }
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();

  WarpProduct<kTiles> product;
  const bf16* rows = reinterpret_cast<const bf16*>(memory) + lane / 4 * (kRowPitch / 2) + lane % 4 * 8;
  const auto from = [&](int tile) { return rows + tile * kTileRows * (kRowPitch / 2); };
  // Addresses advance once for all stages, which saves registers.
  for (int left = steps; left > 0; left -= kStages) {
    w.upper += kStages * kStep;
    w.lower += kStages * kStep;
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      if (stage >= left) break;
      product.multiply(ring[stage], stage, from);
      ring[stage].load(w, stage, stage + kStages < left);
    }
    rows += kStages * kStep;
  }

  __syncthreads();  // the rows of a have been read
  // The place is computed again, so that it takes no registers of the loop.
  const Place to(p, recomputed(block), recomputed(thread));
  float* sums = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = tile * kTileRows + to.lane % 4 * 2 + i % 2;
      sums[row * kSumPitch + to.warp * kWarpRows + to.lane / 4 + i / 2 * 8] = product.sums[tile][i];
    }
  }
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  cluster.sync();
  const int row = to.slice * kTiles + to.warp;
  if (to.warp < kTiles && row < p.rows) {
    float* own = sums + row * kSumPitch + to.lane * 4;
    float4 sum = {};
#pragma unroll
    for (unsigned other = 0; other < kSlices; ++other) {
      const float4 addend = *reinterpret_cast<const float4*>(cluster.map_shared_rank(own, other));
      sum = {sum.x + addend.x, sum.y + addend.y, sum.z + addend.z, sum.w + addend.w};
    }
    const uint2 packed{pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w)};
    *reinterpret_cast<uint2*>(p.c[to.part] + int64_t{row} * p.n[to.part] + to.column + to.lane * 4) = packed;
  }
  cluster.sync();  // no CTA exits before the others have read its shared memory
#endif
}

template <int kTiles, int kStages>
void launch(const Context& context, const FewRowsMatmul& p, unsigned clusters) {
  const auto kernel = &few_rows_matmul_kernel<kTiles, kStages>;
  allow_shared_memory(kernel, shared_bytes(kTiles));
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kSlices;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = clusters * kSlices;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = shared_bytes(kTiles);
  config.stream = stream_of(context);
  config.attrs = &cluster;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, p), "multiplying few rows");
}

bool takes(const Tensor& tensor) {
  return tensor.dtype == DType::kBF16 && reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0;
}

}  // namespace

bool few_rows_matmul_can_run(const Context& context, const FewRowsMatmulArgs& args) {
  const int64_t rows = args.a.shape[0], k = args.a.shape[1];
  if (rows < 1 || rows > kMostFewRows || k % kStep != 0 || k < kLeastK || k > kMostK || !takes(args.a)) return false;
  int64_t columns = 0;
  for (size_t i = 0; i < kMostFewRowsWeights && args.b[i].defined(); ++i) {
    const int64_t n = args.b[i].shape[0];
    if (n == 0 || n % kColumns != 0 || !takes(args.b[i]) || !takes(args.c[i])) return false;
    columns += n;
  }
  return columns > 0 && columns <= kMostColumns && kernel_tiers(context).grouped_gemm == Tier::kSm90;
}

void few_rows_matmul(const Context& context, const FewRowsMatmulArgs& args) {
  context.note_kernel("dense products", "few rows");
  if (context.dry()) return;
  FewRowsMatmul p{};
  p.a = elements<bf16>(args.a);
  p.rows = static_cast<int>(args.a.shape[0]);
  p.k = static_cast<int>(args.a.shape[1]);
  p.steps = p.k / kStep;
  int clusters = 0;
  for (size_t i = 0; i < kMostFewRowsWeights; ++i) {
    p.first[i] = args.b[i].defined() ? clusters : INT_MAX;
    if (!args.b[i].defined()) continue;
    p.b[i] = elements<bf16>(args.b[i]);
    p.c[i] = elements<bf16>(args.c[i]);
    p.n[i] = static_cast<int>(args.b[i].shape[0]);
    clusters += p.n[i] / kColumns;
  }
  // Where two CTAs a multiprocessor are all there are, they may use the registers of a third.
  const bool deep = clusters * kSlices <= 2 * queue_of(context).multiprocessors();
  const int tiles = (p.rows + kTileRows - 1) / kTileRows;
  const auto start = [&](auto most) {
    deep ? launch<most(), 4>(context, p, static_cast<unsigned>(clusters))
         : launch<most(), 2>(context, p, static_cast<unsigned>(clusters));
  };
  if (tiles == 1) return start(std::integral_constant<int, 1>());
  if (tiles <= kMostTiles / 2) return start(std::integral_constant<int, kMostTiles / 2>());
  start(std::integral_constant<int, kMostTiles>());
}

}  // namespace hone::cuda
