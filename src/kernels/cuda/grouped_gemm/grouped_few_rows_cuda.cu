// Products of few rows of each group: bound by reading every weight once.
//
// A warp has 16 rows of w, whole along k; with an activation 8 of gate and the matching 8 of up. It loads them from
// device memory straight into the fragments of mma.m16n8k16, four lanes a row: a lane's 16 bytes are 8 adjacent k,
// which two products take as their k = 2 q, 2 q + 1, 2 q + 8, 2 q + 9 (q: lane % 4), and rows of a are read in the same
// order. Three steps of 64 of k are in flight, 6 KB a warp, some 96 KB a multiprocessor. The rows of a that a CTA
// multiplies are in shared memory if they fit, else in L1.
#include <algorithm>

#include "kernels/cuda/grouped_gemm/grouped_few_rows.h"
#include "kernels/cuda/grouped_gemm/grouped_tensor_cores_cuda.h"

namespace hone::cuda {

namespace {

using bf16 = __nv_bfloat16;

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kWarpRows = 16;   // rows of w
constexpr int kChunk = 32;      // along k: 64 bytes of a row
constexpr int kStepChunks = 2;  // chunks of a step
constexpr int kStep = kChunk * kStepChunks;
constexpr int kTileRows = 8;     // rows of a that a product has as its n
constexpr int kMostTiles = 4;    // tiles that read w together
constexpr int kMostStaged = 16;  // rows of a in shared memory
constexpr size_t kMostShared = 72 << 10;

struct FewRows {
  const int64_t* offsets;
  const bf16* a;
  const int32_t* a_rows;
  const bf16* w;
  bf16* c;
  bf16* activation;
  int n, k;
  int staged;  // rows that fit in shared memory

  __device__ const bf16* row_of_a(int64_t row) const { return a + (a_rows != nullptr ? a_rows[row] : row) * k; }
};

/// Bytes from a row to the next in shared memory: lanes of two rows that are read together use all banks.
__host__ __device__ constexpr int staged_pitch(int k) { return 2 * k + (k % 64 == 32 ? 0 : 64); }

/// 16 bytes of a weight, which no other CTA reads; zeros if !valid.
__device__ inline uint4 load_weight(const bf16* from, bool valid) {
  uint4 value;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %5, 0;\n"
      "mov.b32 %0, 0;\n"
      "mov.b32 %1, 0;\n"
      "mov.b32 %2, 0;\n"
      "mov.b32 %3, 0;\n"
      "@p ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}\n"
      : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
      : "l"(from), "r"(static_cast<int>(valid)));
  return value;
}

/// An 8 x 8 matrix of 16-bit elements, of which lane l has columns 2 (l % 4) and the next of row l / 4, transposed.
__device__ inline uint32_t transpose_8x8(uint32_t pair) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(result) : "r"(pair));
  return result;
}

/// The 16 rows of w of a warp: this lane's part of rows `upper` and `lower`.
struct WeightRows {
  const bf16 *upper, *lower;
};

struct WeightStep {
  uint4 upper[kStepChunks], lower[kStepChunks];

  __device__ void load(const WeightRows& rows, int step, bool exists) {
#pragma unroll
    for (int chunk = 0; chunk < kStepChunks; ++chunk) {
      upper[chunk] = load_weight(rows.upper + step * kStep + chunk * kChunk, exists);
      lower[chunk] = load_weight(rows.lower + step * kStep + chunk * kChunk, exists);
    }
  }
};

/// Sums of the 16 rows of w with kTiles tiles of rows of a; `from(tile)` is this lane's part of its row of the tile.
template <int kTiles>
struct WarpProduct {
  float sums[kTiles][4] = {};

  __device__ void multiply(const WeightStep& w, const bf16* const (&a)[kTiles], int step) {
#pragma unroll
    for (int chunk = 0; chunk < kStepChunks; ++chunk) {
      const uint4 &upper = w.upper[chunk], &lower = w.lower[chunk];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 row = *reinterpret_cast<const uint4*>(a[tile] + step * kStep + chunk * kChunk);
        mma_m16n8k16(sums[tile], upper.x, lower.x, upper.y, lower.y, row.x, row.y);
        mma_m16n8k16(sums[tile], upper.z, lower.z, upper.w, lower.w, row.z, row.w);
      }
    }
  }
};

/// Stores the sums of rows [0, rows) of a, whose first one is row `first` of c; `column`: the warp's first row of w.
template <bool kActivates, int kTiles>
__device__ void store(const FewRows& p, const float (&sums)[kTiles][4], int64_t first, int rows, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, pair = lane % 4 * 2;
  const int distance = kActivates ? p.n / 2 : kTileRows;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const uint32_t upper = transpose_8x8(pack_bf16(sums[tile][0], sums[tile][1]));
    const uint32_t lower = transpose_8x8(pack_bf16(sums[tile][2], sums[tile][3]));
    const int row = tile * kTileRows + group;
    if (row >= rows) continue;
    bf16* to = p.c + (first + row) * p.n + column + pair;
    *reinterpret_cast<uint32_t*>(to) = upper;
    *reinterpret_cast<uint32_t*>(to + distance) = lower;
    if constexpr (kActivates) {
      to = p.activation + (first + row) * (p.n / 2) + column + pair;
      *reinterpret_cast<uint32_t*>(to) = activate_pair(upper, lower);
    }
  }
}

/// Copies rows [first, first + rows) of the sorted ones to shared memory. Called by all threads.
__device__ void stage_rows(const FewRows& p, int64_t first, int rows, bf16* staged) {
  const int lane = static_cast<int>(threadIdx.x) % 32, units = p.k / 8;
  __syncthreads();  // the rows before have been read
  for (int row = static_cast<int>(threadIdx.x) / 32; row < rows; row += kWarps) {
    const bf16* from = p.row_of_a(first + row);
    const uint32_t to = shared_address(staged) + static_cast<uint32_t>(row * staged_pitch(p.k));
    for (int unit = lane; unit < units; unit += 32) {
      cp_async_16(to + static_cast<uint32_t>(unit) * 16, from + unit * 8, true);
    }
  }
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
}

/// Rows [first, first + rows) of the sorted ones, in kTiles tiles. `column`: the warp's first row of w; from `width` on
/// there is none, and the warp only copies rows of a.
template <bool kActivates, int kTiles>
__device__ void multiply_rows(const FewRows& p, const bf16* matrix, int column, int width, int64_t first, int rows,
                              bf16* staged) {
  // More steps in flight would not leave registers for the sums of many rows.
  constexpr int kStages = kTiles <= 2 ? 4 : 3;
  const int lane = static_cast<int>(threadIdx.x) % 32, steps = p.k / kStep;
  const bool inside = column < width;
  const bf16* upper = matrix + int64_t{column + lane / 4} * p.k + lane % 4 * 8;
  WeightRows w{upper, upper + int64_t{kActivates ? width : kTileRows} * p.k};
  WeightStep ring[kStages];
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) ring[step].load(w, step, inside && step < steps);
  const bool stages = rows <= p.staged;
  if (stages) stage_rows(p, first, rows, staged);
  if (!inside) return;
  const bf16* a[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int row = min(tile * kTileRows + lane / 4, rows - 1);
    a[tile] = (stages ? staged + row * (staged_pitch(p.k) / 2) : p.row_of_a(first + row)) + lane % 4 * 8;
  }
  WarpProduct<kTiles> product;
  // Addresses advance once for all stages: with an address for each load the registers would not suffice.
  for (int left = steps; left > 0; left -= kStages) {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      if (stage >= left) break;
      ring[(stage + kStages - 1) % kStages].load(w, stage + kStages - 1, stage + kStages - 1 < left);
      product.multiply(ring[stage], a, stage);
    }
    w.upper += kStages * kStep;
    w.lower += kStages * kStep;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) a[tile] += kStages * kStep;
  }
  store<kActivates>(p, product.sums, first, rows, column);
}

/// A CTA has a group and 128 rows of its w: blockIdx (part of N, group).
template <bool kActivates>
__global__ void __launch_bounds__(kThreads, 2) few_rows_kernel(const FewRows p) {
  extern __shared__ uint4 memory[];
  bf16* staged = reinterpret_cast<bf16*>(memory);
  const int group = static_cast<int>(blockIdx.y);
  const int64_t begin = p.offsets[group], end = p.offsets[group + 1];
  const int width = kActivates ? p.n / 2 : p.n;
  const int warp = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int column = warp * (kActivates ? kWarpRows / 2 : kWarpRows);
  const bf16* matrix = p.w + int64_t{group} * p.n * p.k;
  constexpr int kMostRows = kTileRows * kMostTiles;
  for (int64_t first = begin; first < end; first += kMostRows) {
    const int rows = static_cast<int>(min(end - first, int64_t{kMostRows}));
    if (rows <= kTileRows) {
      multiply_rows<kActivates, 1>(p, matrix, column, width, first, rows, staged);
    } else if (rows <= 2 * kTileRows) {
      multiply_rows<kActivates, 2>(p, matrix, column, width, first, rows, staged);
    } else {
      multiply_rows<kActivates, kMostTiles>(p, matrix, column, width, first, rows, staged);
    }
  }
}

template <bool kActivates>
void launch(const Context& context, const FewRows& p, int64_t groups) {
  constexpr int kColumns = kWarps * (kActivates ? kWarpRows / 2 : kWarpRows);
  const dim3 grid(blocks_for(kActivates ? p.n / 2 : p.n, kColumns), static_cast<unsigned>(groups));
  const size_t shared = static_cast<size_t>(p.staged * staged_pitch(p.k));
  allow_shared_memory(&few_rows_kernel<kActivates>, kMostShared);
  few_rows_kernel<kActivates><<<grid, kThreads, shared, stream_of(context)>>>(p);
  check_launch("multiplying few rows of groups");
}

}  // namespace

bool few_rows_can_run(const Context& context, const GroupedGemmArgs& args) {
  if (!args.decode || args.fp8.defined() || args.w_transposed || args.extra_a.defined()) return false;
  const int64_t n = args.w.shape[1], k = args.w.shape[2];
  return kernel_tiers(context).grouped_gemm != Tier::kGeneral && takes_rows(args) && n % 16 == 0 && k % kStep == 0 &&
         k > 0 && args.groups.rows <= kFewRows * args.groups.groups() && args.groups.groups() <= 65535;
}

void grouped_few_rows(const Context& context, const GroupedGemmArgs& args) {
  if (context.dry() || args.groups.rows == 0) return;
  const int64_t k = args.w.shape[2];
  const FewRows p{.offsets = args.groups.offsets.as<int64_t>(),
                  .a = elements<bf16>(args.a),
                  .a_rows = elements<int32_t>(args.a_rows),
                  .w = elements<bf16>(args.w),
                  .c = elements<bf16>(args.c),
                  .activation = elements<bf16>(args.activation),
                  .n = static_cast<int>(args.w.shape[1]),
                  .k = static_cast<int>(k),
                  .staged = static_cast<int>(std::min<int64_t>(
                      kMostStaged, static_cast<int64_t>(kMostShared) / staged_pitch(static_cast<int>(k))))};
  const int64_t groups = args.groups.groups();
  args.activation.defined() ? launch<true>(context, p, groups) : launch<false>(context, p, groups);
}

}  // namespace hone::cuda
