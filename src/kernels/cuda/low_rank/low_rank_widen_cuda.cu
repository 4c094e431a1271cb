// Thin to wide, y += (x Aᵀ) Bᵀ: bound by reading and writing the wide matrix once.
#include "kernels/cuda/low_rank/low_rank_cuda.h"
#include "kernels/cuda/low_rank/low_rank_kernels_cuda.h"

namespace hone::cuda {

namespace {

/// A CTA has 128 rows and 512 columns; a warp processes 16 of the rows, 64 columns (128 bytes) at a time. All warps
/// read the same part of the factor together, so most of its reads hit L1.
constexpr int kThreads = 256;
constexpr int kBlockRows = kThreads / 32 * 16;
constexpr int kBlockColumns = 512;
constexpr int kHalves = 2;  ///< 32 columns each, per step

struct WidenKernel {
  LowRankShape shape;
  RowMask mask;
  const float* thin;
  const __nv_bfloat16* factor;  // [N, 16 kDepth]
  __nv_bfloat16* wide;
  float alpha, beta;
};

/// Thin values p … p + 3 of a row in bfloat16.
__device__ inline uint2 thin_values(const WidenKernel& k, int64_t row, int p) {
  const float* from = k.thin + row * k.shape.rank;
  float values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = row < k.shape.rows && p + i < k.shape.rank ? from[p + i] : 0.0f;
  return make_uint2(pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]));
}

template <int kDepth, bool kMasked>
__global__ void __launch_bounds__(kThreads, 2) widen_kernel(WidenKernel k) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kBlockRows + warp * 16 + group;
  const int columns = k.shape.columns;

  uint2 thin[kDepth][2];
  MaskRow mask_rows[2];
  const uint64_t key = kMasked ? lora_dropout_key(k.mask.scalars->seed, k.mask.stream_id) : 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int depth = 0; depth < kDepth; ++depth)
      thin[depth][i] = thin_values(k, first_row + 8 * i, depth * 16 + 4 * quad);
    if constexpr (kMasked) mask_rows[i] = mask_row(k.mask, min(first_row + 8 * i, k.shape.rows - 1));
  }

  // A thread has eight columns of a half: two in each of four tiles of 8 columns.
  const int first = static_cast<int>(blockIdx.y) * kBlockColumns, end = min(columns, first + kBlockColumns);
  const auto inside = [&](int i, int column) { return first_row + 8 * i < k.shape.rows && column < end; };
  const auto address = [&](int i, int column) { return k.wide + (first_row + 8 * i) * columns + column; };
  for (int begin = first; begin < end; begin += 32 * kHalves) {
    Pack<__nv_bfloat16> packs[kHalves][2];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int column = begin + half * 32 + quad * 8;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (k.beta != 0.0f && inside(i, column)) packs[half][i] = load_pack(address(i, column));
      }
    }
    float sums[kHalves][4][4] = {};
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        const int column = min(begin + half * 32 + group / 2 * 8 + 2 * tile + group % 2, columns - 1);
        const __nv_bfloat16* from = k.factor + static_cast<int64_t>(column) * (16 * kDepth) + 4 * quad;
#pragma unroll
        for (int depth = 0; depth < kDepth; ++depth) {
          const uint2 b = __ldg(reinterpret_cast<const uint2*>(from + 16 * depth));
          const uint2 &upper = thin[depth][0], &lower = thin[depth][1];
          mma_m16n8k16(sums[half][tile], upper.x, lower.x, upper.y, lower.y, b.x, b.y);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int column = begin + half * 32 + quad * 8;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint4 bits = make_uint4(~0u, ~0u, ~0u, ~0u);
        if constexpr (kMasked) bits = keep_bits(k.mask, key, mask_rows[i], column);
        const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
        Pack<__nv_bfloat16> result;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const bool kept = !kMasked || (words[j / 2] >> (16 * (j % 2)) & 1u) != 0;
          const float added = kept ? k.alpha * sums[half][j / 2][2 * i + j % 2] : 0.0f;
          const float before = k.beta != 0.0f ? to_float(packs[half][i].values[j]) : 0.0f;
          result.values[j] = __float2bfloat16_rn(added + before);
        }
        if (inside(i, column)) store_pack(address(i, column), result);
      }
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
