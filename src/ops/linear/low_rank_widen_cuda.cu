#include "ops/linear/low_rank_cuda.h"
#include "ops/linear/low_rank_kernels_cuda.h"

namespace hone::cuda {

namespace {

/// A block is 256 rows and 256 columns; a warp is 32 of the rows, which it walks 32 columns at a time. All warps of a
/// block read the factor together, which leaves its traffic to L1.
constexpr int kThreads = 256;
constexpr int kRowTiles = 2;  ///< of 16 rows, in a warp
constexpr int kBlockRows = kThreads / 32 * kRowTiles * 16;
constexpr int kBlockColumns = 256;

struct WidenKernel {
  LowRankShape shape;
  RowMask mask;
  const float* thin;
  const __nv_bfloat16* factor;  // [N, 16 kDepth]
  __nv_bfloat16* wide;
  float alpha, beta;
};

/// Thin values of a row, p … p + 3, in bfloat16.
__device__ inline uint2 thin_values(const WidenKernel& k, int64_t row, int p) {
  const float* from = k.thin + row * k.shape.rank;
  float values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = row < k.shape.rows && p + i < k.shape.rank ? from[p + i] : 0.0f;
  return make_uint2(pair_of(values[0], values[1]), pair_of(values[2], values[3]));
}

template <int kDepth, bool kMasked>
__global__ void __launch_bounds__(kThreads, 2) widen_kernel(WidenKernel k) {
  constexpr bool kAhead = !kMasked && kDepth <= 2;  // loads one step ahead, where there are registers for it
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kBlockRows + warp * kRowTiles * 16 + group;
  const int columns = k.shape.columns;

  uint2 thin[kDepth][2 * kRowTiles];
#pragma unroll
  for (int depth = 0; depth < kDepth; ++depth) {
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) thin[depth][i] = thin_values(k, first_row + 8 * i, depth * 16 + 4 * quad);
  }
  MaskRow mask_rows[2 * kRowTiles];
  uint64_t key = 0;
  if constexpr (kMasked) {
    key = lora_dropout_key(k.mask.scalars->seed, k.mask.stream_id);
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) mask_rows[i] = mask_row(k.mask, min(first_row + 8 * i, k.shape.rows - 1));
  }

  const auto load = [&](int begin, Pack<__nv_bfloat16>(&packs)[2 * kRowTiles]) {
    const int column = begin + quad * 8;
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      const int64_t row = first_row + 8 * i;
      if (row < k.shape.rows && column < columns) packs[i] = load_pack(k.wide + row * columns + column);
    }
  };
  const int end = min(columns, static_cast<int>(blockIdx.y + 1) * kBlockColumns);
  int begin = static_cast<int>(blockIdx.y) * kBlockColumns;
  Pack<__nv_bfloat16> next[2 * kRowTiles];
  if (kAhead && k.beta != 0.0f) load(begin, next);
  for (; begin < end; begin += 32) {
    const int column = begin + quad * 8;  // the eight of this thread: 2 in each of 4 tiles of 8 columns
    Pack<__nv_bfloat16> packs[2 * kRowTiles];
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) packs[i] = next[i];
    if (!kAhead && k.beta != 0.0f) load(begin, packs);
    if (kAhead && k.beta != 0.0f && begin + 32 < end) load(begin + 32, next);
    float sums[kRowTiles][4][4] = {};
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const int factor_column = min(begin + group / 2 * 8 + 2 * tile + group % 2, columns - 1);
      const __nv_bfloat16* from = k.factor + static_cast<int64_t>(factor_column) * (16 * kDepth) + 4 * quad;
#pragma unroll
      for (int depth = 0; depth < kDepth; ++depth) {
        const uint2 b = __ldg(reinterpret_cast<const uint2*>(from + 16 * depth));
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          const uint2 &upper = thin[depth][2 * m], &lower = thin[depth][2 * m + 1];
          multiply_add(sums[m][tile], upper.x, lower.x, upper.y, lower.y, b.x, b.y);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      const int64_t row = first_row + 8 * i;
      if (row >= k.shape.rows || column >= columns) continue;
      uint4 bits = make_uint4(~0u, ~0u, ~0u, ~0u);
      if constexpr (kMasked) bits = keep_bits(k.mask, key, mask_rows[i], column);
      const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
      Pack<__nv_bfloat16> result;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const bool kept = !kMasked || (words[j / 2] >> (16 * (j % 2)) & 1u) != 0;
        const float added = kept ? k.alpha * sums[i / 2][j / 2][2 * (i % 2) + j % 2] : 0.0f;
        result.values[j] = __float2bfloat16_rn(added + (k.beta != 0.0f ? to_float(packs[i].values[j]) : 0.0f));
      }
      store_pack(k.wide + row * columns + column, result);
    }
  }
}

template <int kDepth>
void launch(const Context& context, const WidenKernel& k) {
  const auto kernel = k.mask.probability > 0.0f ? widen_kernel<kDepth, true> : widen_kernel<kDepth, false>;
  const dim3 blocks(blocks_for(k.shape.rows, kBlockRows), blocks_for(k.shape.columns, kBlockColumns));
  kernel<<<blocks, kThreads, 0, stream_of(context)>>>(k);
  check_launch("adding a low-rank product");
}

}  // namespace

void low_rank_widen_kernels(const Context& context, const LowRankWidenArgs& args) {
  const Tensor& wide = args.wide.dst;
  const int64_t rank = args.thin.shape[1], depth = rank <= 16 ? 1 : rank <= 32 ? 2 : 4;
  HONE_ASSERT(args.thin.dtype == DType::kF32);
  ArenaScope scratch(context.scratch());
  const Tensor factor = scratch.take({wide.shape[1], 16 * depth}, DType::kBF16);
  if (context.dry()) return;
  pad_factor(context, args.factor, !args.factor_transposed, factor);
  const WidenKernel kernel{.shape = low_rank_shape(wide, rank),
                           .mask = RowMask(args.dropout),
                           .thin = elements<float>(args.thin),
                           .factor = elements<__nv_bfloat16>(factor),
                           .wide = elements<__nv_bfloat16>(wide),
                           .alpha = args.alpha,
                           .beta = args.wide.beta};
  if (depth == 1) return launch<1>(context, kernel);
  if (depth == 2) return launch<2>(context, kernel);
  launch<4>(context, kernel);
}

}  // namespace hone::cuda
