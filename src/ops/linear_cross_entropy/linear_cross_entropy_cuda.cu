// The kernels of the LM head beside its products (linear_cross_entropy_gpu.cpp).
#include "kernels/cuda/tiers.h"
#include "ops/linear_cross_entropy/logits_chunk_cuda.h"
#include "ops/linear_cross_entropy/loss_rows_cuda.h"

namespace hone::cuda {

namespace {

/// to[rows[i], :] = from[i, :], one thread per `Word`.
template <class Word>
__global__ void scatter_rows_kernel(const Word* from, const int32_t* rows, int64_t count, int64_t width, Word* to) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= count * width) return;
  const int64_t row = index / width;
  to[rows[row] * width + index - row * width] = from[index];
}

TokenResult* token_results(const Tensor& results) { return reinterpret_cast<TokenResult*>(results.data); }

}  // namespace

void scatter_rows(const Context& context, const Tensor& from, const Tensor& rows, const Tensor& to) {
  if (context.dry()) return;
  const int64_t count = from.shape[0], bytes = from.shape[1] * static_cast<int64_t>(size_of(from.dtype));
  const auto launch = [&](auto word) {
    using Word = decltype(word);
    constexpr int kThreads = 256;
    const int64_t width = bytes / static_cast<int64_t>(sizeof(Word));
    scatter_rows_kernel<<<blocks_for(count * width, kThreads), kThreads, 0, stream_of(context)>>>(
        reinterpret_cast<const Word*>(from.data), elements<int32_t>(rows), count, width,
        reinterpret_cast<Word*>(to.data));
    check_launch("scattering rows");
  };
  bytes % 16 == 0 && reinterpret_cast<uintptr_t>(to.data) % 16 == 0 ? launch(uint4{}) : launch(uint16_t{});
}

void differentiate_chunk(const Context& context, const LinearCrossEntropyArgs& args, const LogitsChunk& chunk) {
  if (context.dry()) return;
  cuda::dispatch_float(chunk.logits.dtype, [&](auto element) {
    using T = decltype(element);
    const LossRows<T> rows{
        .logits = elements<T>(chunk.logits),
        .pitch = chunk.logits.shape[1],
        .vocab = static_cast<int>(args.w.shape[0]),
        .rows = chunk.count,
        .targets = elements<int32_t>(args.tokens.targets) + chunk.begin,
        .weights = elements<float>(args.tokens.weights) + chunk.begin,
        .scalars = args.scalars,
        .soft_cap = args.soft_cap,
        .label_smoothing = args.label_smoothing,
        .token_loss = args.token_loss.defined() ? elements<float>(args.token_loss) + chunk.begin : nullptr,
        .results = token_results(chunk.results) + chunk.begin,
        .wants_grad = args.wants_grad()};
    if (args.soft_cap > 0) cap_rows(context, rows);
    if constexpr (sizeof(T) == 2) {
      if (kernel_tiers(context).loss_rows == Tier::kSm90 && differentiate_rows_hopper(context, rows)) {
        return context.note_kernel("rows of logits", "sm90");
      }
    }
    context.note_kernel("rows of logits", "for all GPUs");
    differentiate_rows(context, rows);
  });
}

void add_loss_totals(const Context& context, const LinearCrossEntropyArgs& args, const Tensor& results) {
  if (context.dry()) return;
  add_totals(context, token_results(results), elements<float>(args.tokens.weights), args.tokens.count(),
             elements<int32_t>(args.tokens.present), args.totals);
}

}  // namespace hone::cuda
