// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of attention_cuda.cu.
#include <cstdint>
#include <iterator>

#include "kernels/cuda/tiers.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_sinks.h"

namespace hone::cuda {

namespace {

constexpr int64_t kTileRows = 128, kStatsRows = 128;  // attention_tiles_cuda.h

void take_tiles(ArenaScope& memory, const AttentionArgs& args) {
  const int64_t tiles = args.q.shape[0] / kTileRows + args.sequences.num_documents;
  memory.take({tiles, 4}, DType::kI32);  // unsorted
  memory.take({tiles, 4}, DType::kI32);  // sorted
  memory.take({2}, DType::kI32);         // counters
}

/// What a shape of backward's kernels has: heads of up to so many elements, queries of a step, bytes of shared memory,
/// columns of a partial dq.
struct BackwardSizes {
  int64_t head_dim, v_head_dim, queries;
  size_t shared = 0;
  int64_t dq_columns = head_dim;
};

/// sm90/attention_cuda.h: the first that fits.
constexpr BackwardSizes kHopperSizes[] = {{64, 64, 128}, {128, 128, 64}, {192, 128, 64}, {256, 256, 64}};

/// Bytes of a CTA in sm80/backward_cuda.cu, BackwardShape.
constexpr size_t sm80_bytes(int64_t dim, int64_t v_dim, int64_t key_tiles, int64_t queries, int64_t stages,
                            int64_t pairs) {
  const int64_t keys = pairs * 16 * key_tiles, barriers = 4 * stages + 2 * pairs + 4;
  return static_cast<size_t>(2 * keys * (dim + v_dim) + stages * 2 * queries * (dim + v_dim) + 4 * keys * queries +
                             8 * stages * queries + 8 * barriers);
}

/// The shapes of with_backward_shape() there: the first that fits, else the last.
constexpr BackwardSizes kSm80Sizes[] = {
    {64, 64, 64, sm80_bytes(64, 64, 2, 64, 2, 4)},     {128, 128, 64, sm80_bytes(128, 128, 2, 64, 2, 4)},
    {128, 128, 32, sm80_bytes(128, 128, 2, 32, 1, 4)}, {192, 128, 64, sm80_bytes(192, 128, 1, 64, 2, 4)},
    {192, 128, 64, sm80_bytes(192, 128, 1, 64, 1, 4)}, {256, 256, 64, sm80_bytes(256, 256, 1, 64, 1, 4)},
    {256, 256, 32, sm80_bytes(256, 256, 1, 32, 1, 2)}};

/// The same for heads of more than 256, where backward and forward have a CTA that fits (sm80_attention_serves()).
constexpr int64_t kWideSlice = 256;
constexpr BackwardSizes kWideSizes[] = {{512, 512, 32, sm80_bytes(512, 512, 1, 32, 1, 4), kWideSlice},
                                        {512, 512, 32, sm80_bytes(512, 512, 1, 32, 1, 2), kWideSlice}};
constexpr size_t kWideForwardBytes = size_t{2} * (128 * 512 + 16 * (512 + 256));

/// The sizes with which kernels on tensor cores compute the gradients; null: the general kernels do.
const BackwardSizes* backward_sizes(const Context& context, const AttentionArgs& args) {
  const AttentionOptions& options = args.options;
  const KernelTiers tiers = kernel_tiers(context);
  if (tiers.attention == Tier::kGeneral || args.q.dtype != DType::kBF16 || options.head_dim % 8 != 0 ||
      options.v_head_dim % 8 != 0 || args.q.shape[0] > INT32_MAX / 2 || options.sliding_window > INT32_MAX / 2) {
    return nullptr;
  }
  const auto holds = [&](const BackwardSizes& sizes) {
    return options.head_dim <= sizes.head_dim && options.v_head_dim <= sizes.v_head_dim;
  };
  if (tiers.attention == Tier::kSm90) {
    for (const BackwardSizes& sizes : kHopperSizes) {
      if (holds(sizes)) return &sizes;
    }
  }
  if (options.head_dim > kWideSlice || options.v_head_dim > kWideSlice) {
    if (tiers.shared_memory < kWideForwardBytes || !holds(kWideSizes[0])) return nullptr;
    return kWideSizes[0].shared <= tiers.shared_memory ? &kWideSizes[0] : &kWideSizes[1];
  }
  for (const BackwardSizes& sizes : kSm80Sizes) {
    if (holds(sizes) && sizes.shared <= tiers.shared_memory) return &sizes;
  }
  return std::end(kSm80Sizes) - 1;
}

}  // namespace

void attention(const Context& context, const AttentionArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  ArenaScope memory(context.scratch());
  take_tiles(memory, args);
}

void attention_backward(const Context& context, const AttentionBackwardArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  const AttentionArgs& forward = args.forward;
  const int64_t tokens = forward.q.shape[0], heads = forward.options.num_heads;
  ArenaScope memory(context.scratch());
  if (const BackwardSizes* sizes = backward_sizes(context, forward)) {
    take_tiles(memory, forward);
    const int64_t stats = (tokens / kStatsRows + forward.sequences.num_documents) * kStatsRows;
    memory.take({heads, stats}, DType::kF32);  // shifts
    memory.take({heads, stats}, DType::kF32);  // deltas
    const int64_t blocks = tokens / sizes->queries;
    memory.take({heads, blocks}, DType::kI32);                                     // turns
    memory.take({heads, blocks, sizes->queries, sizes->dq_columns}, DType::kF32);  // partial dq
  } else {
    memory.take({heads, tokens}, DType::kF32);  // delta
  }
  if (args.dsinks.wanted()) {
    constexpr int64_t kSinkRows = 64;
    memory.take({(args.dout.shape[0] + kSinkRows - 1) / kSinkRows, forward.sinks.numel()}, DType::kF32);
  }
}

}  // namespace hone::cuda
