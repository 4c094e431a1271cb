// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of low_rank*_cuda.cu and
// partial_sums_cuda.cu.
#include <cstdint>

#include "kernels/cuda/low_rank/low_rank_cuda.h"
#include "kernels/cuda/low_rank/partial_sums_cuda.h"
#include "kernels/cuda/matmul/matmul_cuda.h"
#include "kernels/cuda/tiers.h"

namespace hone::cuda {

namespace {

/// Whether the tensor-core kernels support the product (low_rank_kernels_cuda.h).
bool kernels_fit(const Context& context, const Tensor& wide, int64_t rank, int64_t most_ranks) {
  return kernel_tiers(context).low_rank == Tier::kSm80 && wide.dtype == DType::kBF16 && wide.shape[1] % 8 == 0 &&
         wide.shape[1] <= INT32_MAX / 2 && wide.numel() > 0 && rank <= most_ranks && rank > 0;
}

Tensor dropped(ArenaScope& scratch, const Tensor& wide, const LoraDropout& dropout) {
  return dropout.probability > 0.0f ? scratch.take(wide.shape, wide.dtype) : wide;
}

}  // namespace

void low_rank_narrow(const Context& context, const LowRankNarrowArgs& args) {
  const int64_t rank = args.thin.dst.shape[1];
  ArenaScope scratch(context.scratch());
  if (args.dropout.probability > 0.0f && kernels_fit(context, args.wide, rank, 64)) {
    const int64_t tiles = rank <= 8 ? 1 : rank <= 16 ? 2 : rank <= 32 ? 4 : 8;
    scratch.take({8 * tiles, args.wide.shape[1]}, DType::kBF16);
    return;
  }
  matmul(context, {.a = dropped(scratch, args.wide, args.dropout),
                   .b = args.factor,
                   .b_transposed = !args.factor_transposed,
                   .c = args.thin.dst,
                   .operands = args.wide.dtype});
}

void low_rank_widen(const Context& context, const LowRankWidenArgs& args) {
  const bool drops = args.dropout.probability > 0.0f;
  const Tensor& wide = args.wide.dst;
  const int64_t rank = args.thin.shape[1];
  ArenaScope scratch(context.scratch());
  if (kernels_fit(context, wide, rank, drops ? 64 : 32)) {
    const int64_t depth = rank <= 16 ? 1 : rank <= 32 ? 2 : 4;
    scratch.take({wide.shape[1], 16 * depth}, DType::kBF16);
    return;
  }
  matmul(context, {.a = args.thin,
                   .b = args.factor,
                   .b_transposed = args.factor_transposed,
                   .c = drops ? scratch.take(wide.shape, DType::kF32) : wide,
                   .operands = wide.dtype});
}

void low_rank_factor(const Context& context, const LowRankFactorArgs& args) {
  const int64_t rows = args.wide.shape[0], columns = args.wide.shape[1], rank = args.thin.shape[1];
  ArenaScope scratch(context.scratch());
  if (args.dropout.probability > 0.0f && kernels_fit(context, args.wide, rank, 32)) {
    constexpr int64_t kBlockColumns = 64, kBlockRows = 8 * 16;
    const int64_t parts = parts_of(rows, (columns + kBlockColumns - 1) / kBlockColumns, kBlockRows);
    scratch.take({parts, rank, columns}, DType::kF32);
    return;
  }
  const Tensor wide = dropped(scratch, args.wide, args.dropout);
  matmul(context, {.a = args.factor_transposed ? wide : args.thin,
                   .a_transposed = true,
                   .b = args.factor_transposed ? args.thin : wide,
                   .c = args.factor.dst,
                   .operands = args.wide.dtype});
}

void add_parts(const Context& context, const Tensor&, float, const GradDest&, bool) {
  HONE_ASSERT(context.dry(), "built without CUDA");
}

void sum_over_rows(const Context& context, const Tensor& rows, const GradDest&) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  const int64_t columns = rows.shape[1];
  if (columns == 0) return;
  constexpr int64_t kAcross = 32, kDown = 8;
  const int64_t width = columns % 8 == 0 ? 16 / static_cast<int64_t>(size_of(rows.dtype)) : 1;
  const int64_t blocks = (columns + kAcross * width - 1) / (kAcross * width);
  ArenaScope scratch(context.scratch());
  scratch.take({parts_of(rows.shape[0], blocks, 4 * kDown), 1, columns}, DType::kF32);
}

}  // namespace hone::cuda
