// The products of low_rank by cuBLAS, with dropout in a separate pass: for float32, for shapes that the tensor-core
// kernels do not support, and as their reference in tests.
#include "kernels/cuda/low_rank/low_rank_cuda.h"

#include "core/stream/cuda_launch.h"
#include "kernels/cuda/low_rank/low_rank_kernels_cuda.h"
#include "kernels/cuda/matmul/matmul_cuda.h"

namespace hone::cuda {

namespace {

/// to = keep ∘ from + beta · to; one thread per group of 4 features.
template <class From, class To>
__global__ void drop_kernel(RowMask mask, const From* from, To* to, int64_t rows, int64_t columns, float beta) {
  const int64_t groups = (columns + 3) / 4;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= rows * groups) return;
  const int64_t row = index / groups, group = index - row * groups;
  const uint64_t key = lora_dropout_key(mask.scalars->seed, mask.stream_id);
  const auto keep =
      lora_keep(key, mask.probability, mask.samples[row], mask.positions[row], static_cast<uint32_t>(group));
  for (int i = 0; i < 4 && 4 * group + i < columns; ++i) {
    const int64_t at = row * columns + 4 * group + i;
    const float kept = keep[static_cast<size_t>(i)] != 0.0f ? to_float(from[at]) : 0.0f;
    to[at] = from_float<To>(beta != 0.0f ? kept + to_float(to[at]) : kept);
  }
}

void drop(const Context& context, const LoraDropout& dropout, const Tensor& from, const Tensor& to, float beta) {
  if (context.dry() || from.numel() == 0) return;
  const int64_t rows = from.shape[0], columns = from.shape[1];
  cuda::dispatch_float(from.dtype, [&](auto from_element) {
    cuda::dispatch_float(to.dtype, [&](auto to_element) {
      using From = decltype(from_element);
      using To = decltype(to_element);
      constexpr int kThreads = 256;
      drop_kernel<<<blocks_for(rows * ((columns + 3) / 4), kThreads), kThreads, 0, stream_of(context)>>>(
          RowMask(dropout), elements<From>(from), elements<To>(to), rows, columns, beta);
      check_launch("dropping features");
    });
  });
}

/// wide' in scratch, or wide itself without dropout.
Tensor dropped(const Context& context, ArenaScope& scratch, const Tensor& wide, const LoraDropout& dropout) {
  if (dropout.probability <= 0.0f) return wide;
  const Tensor result = scratch.take(wide.shape, wide.dtype);
  drop(context, dropout, wide, result, 0.0f);
  return result;
}

/// Whether the tensor-core kernels take a product, which it notes.
bool by_kernels(const Context& context, bool wanted, const Tensor& wide, int64_t ranks, int64_t most_ranks) {
  const bool taken = wanted && low_rank_kernels_fit(context, wide, ranks, most_ranks);
  context.note_kernel("adapters", taken ? "sm80" : "cuBLASLt");
  return taken;
}

}  // namespace

void low_rank_narrow(const Context& context, const LowRankNarrowArgs& args) {
  const bool drops = args.dropout.probability > 0.0f;
  if (by_kernels(context, drops, args.wide, args.thin.dst.shape[1], kMostNarrowRanks)) {
    return low_rank_narrow_kernels(context, args);
  }
  ArenaScope scratch(context.scratch());
  matmul(context, {.a = dropped(context, scratch, args.wide, args.dropout),
                   .b = args.factor,
                   .b_transposed = !args.factor_transposed,
                   .c = args.thin.dst,
                   .operands = args.wide.dtype,
                   .alpha = args.alpha,
                   .beta = args.thin.beta});
}

void low_rank_widen(const Context& context, const LowRankWidenArgs& args) {
  const bool drops = args.dropout.probability > 0.0f;
  const int64_t most_ranks = drops ? kMostWidenRanks : kMostWidenRanksUndropped;
  if (by_kernels(context, true, args.wide.dst, args.thin.shape[1], most_ranks)) {
    return low_rank_widen_kernels(context, args);
  }
  ArenaScope scratch(context.scratch());
  const Tensor product = drops ? scratch.take(args.wide.dst.shape, DType::kF32) : args.wide.dst;
  matmul(context, {.a = args.thin,
                   .b = args.factor,
                   .b_transposed = args.factor_transposed,
                   .c = product,
                   .operands = args.wide.dst.dtype,
                   .alpha = args.alpha,
                   .beta = drops ? 0.0f : args.wide.beta});
  if (drops) drop(context, args.dropout, product, args.wide.dst, args.wide.beta);
}

void low_rank_factor(const Context& context, const LowRankFactorArgs& args) {
  const bool drops = args.dropout.probability > 0.0f;
  if (by_kernels(context, drops, args.wide, args.thin.shape[1], kMostFactorRanks)) {
    return low_rank_factor_kernels(context, args);
  }
  ArenaScope scratch(context.scratch());
  const Tensor wide = dropped(context, scratch, args.wide, args.dropout);
  matmul(context, {.a = args.factor_transposed ? wide : args.thin,
                   .a_transposed = true,
                   .b = args.factor_transposed ? args.thin : wide,
                   .c = args.factor.dst,
                   .operands = args.wide.dtype,
                   .alpha = args.alpha,
                   .beta = args.factor.beta});
}

}  // namespace hone::cuda
