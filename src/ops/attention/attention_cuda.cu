// Chooses between cuDNN, the kernels for Hopper and the general ones.
#include <bit>
#include <optional>

#include "ops/attention/attention_cudnn.h"
#include "ops/attention/attention_general_cuda.h"
#include "ops/attention/attention_hopper_cuda.h"
#include "ops/attention/attention_sinks.h"

namespace hone::cuda {

namespace {

int64_t next_power_of_two(int64_t value) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(value, 1))));
}

/// Memory for what cuDNN reads of the documents; nothing is written yet.
CudnnSequences take_sequences(ArenaScope& memory, const AttentionArgs& args) {
  constexpr int64_t kLeastSeqlen = 128;  // a tile of queries: below it smaller plans are not faster
  const PackedSequences& packed = args.sequences;
  CudnnSequences result;
  result.num_documents = next_power_of_two(packed.num_documents);
  result.max_seqlen =
      std::max(kLeastSeqlen, next_power_of_two(std::min(packed.max_seqlen, std::max<int64_t>(args.q.shape[0], 1))));
  result.lengths = memory.take({result.num_documents}, DType::kI32);
  for (Tensor* offsets :
       {&result.query_rows, &result.key_rows, &result.value_rows, &result.out_rows, &result.stats_rows}) {
    *offsets = memory.take({result.num_documents + 1}, DType::kI64);
  }
  return result;
}

struct SequencesArgs {
  const int32_t* cu_seqlens;
  int num_documents, padded_documents;
  int64_t query_width, key_width, value_width, out_width, num_heads;
  int32_t* lengths;
  int64_t *query_rows, *key_rows, *value_rows, *out_rows, *stats_rows;
};

__global__ void fill_sequences_kernel(SequencesArgs args) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i > args.padded_documents) return;
  const int64_t row = args.cu_seqlens[min(i, args.num_documents)];
  args.query_rows[i] = row * args.query_width;
  args.key_rows[i] = row * args.key_width;
  args.value_rows[i] = row * args.value_width;
  args.out_rows[i] = row * args.out_width;
  args.stats_rows[i] = row * args.num_heads;
  if (i == args.padded_documents) return;
  args.lengths[i] = i < args.num_documents ? args.cu_seqlens[i + 1] - args.cu_seqlens[i] : 0;
}

void fill_sequences(const Context& context, const AttentionArgs& args, const CudnnSequences& sequences) {
  constexpr int kThreads = 128;
  const SequencesArgs kernel_args{.cu_seqlens = elements<int32_t>(args.sequences.cu_seqlens),
                                  .num_documents = static_cast<int>(args.sequences.num_documents),
                                  .padded_documents = static_cast<int>(sequences.num_documents),
                                  .query_width = args.q.shape[1],
                                  .key_width = args.k.shape[1],
                                  .value_width = args.v.shape[1],
                                  .out_width = args.out.shape[1],
                                  .num_heads = args.options.num_heads,
                                  .lengths = elements<int32_t>(sequences.lengths),
                                  .query_rows = elements<int64_t>(sequences.query_rows),
                                  .key_rows = elements<int64_t>(sequences.key_rows),
                                  .value_rows = elements<int64_t>(sequences.value_rows),
                                  .out_rows = elements<int64_t>(sequences.out_rows),
                                  .stats_rows = elements<int64_t>(sequences.stats_rows)};
  fill_sequences_kernel<<<blocks_for(sequences.num_documents + 1, kThreads), kThreads, 0, stream_of(context)>>>(
      kernel_args);
  check_launch("reading document offsets");
}

void general_attention(const Context& context, const AttentionArgs& args) {
  cuda::dispatch_float(args.q.dtype, [&](auto element) {
    using T = decltype(element);
    launch_general_forward<T>(context, {.q = elements<T>(args.q),
                                        .k = elements<T>(args.k),
                                        .v = elements<T>(args.v),
                                        .out = elements<T>(args.out),
                                        .lse = elements<float>(args.lse),
                                        .cu_seqlens = elements<int32_t>(args.sequences.cu_seqlens),
                                        .num_documents = static_cast<int>(args.sequences.num_documents),
                                        .tokens = args.q.shape[0],
                                        .num_heads = static_cast<int>(args.options.num_heads),
                                        .num_kv_heads = static_cast<int>(args.options.num_kv_heads),
                                        .head_dim = static_cast<int>(args.options.head_dim),
                                        .v_head_dim = static_cast<int>(args.options.v_head_dim),
                                        .scale = args.options.scale,
                                        .window = args.options.sliding_window,
                                        .cached = nullptr,
                                        .capacity = 0,
                                        .least_queries = 0});
  });
}

/// How the forward kernel that serves these arguments lays lse out.
LseStrides lse_strides(const Context& context, const AttentionArgs& args, const CudnnSequences& sequences) {
  const bool by_cudnn =
      !sm90::hopper_attention_serves(context, args) && cudnn_attention_serves(context, args, sequences);
  return by_cudnn ? LseStrides{1, args.options.num_heads} : LseStrides{args.q.shape[0], 1};
}

AttentionSinks sinks_of(const AttentionArgs& args, LseStrides strides) {
  return {.sinks = args.sinks,
          .out = args.out,
          .lse = args.lse,
          .lse_head_stride = strides.head,
          .lse_row_stride = strides.row};
}

}  // namespace

void attention(const Context& context, const AttentionArgs& args) {
  ArenaScope memory(context.scratch());
  const CudnnSequences sequences = take_sequences(memory, args);
  const sm90::HopperTiles tiles(memory, args);
  if (context.dry() || args.q.shape[0] == 0) return;
  if (sm90::hopper_attention_serves(context, args)) {
    context.note_kernel("attention", "Hopper forward");
    sm90::hopper_attention(context, args, tiles);
  } else if (cudnn_attention_serves(context, args, sequences)) {
    context.note_kernel("attention", "cuDNN forward");
    fill_sequences(context, args, sequences);
    cudnn_attention(context, args, sequences);
  } else {
    context.note_kernel("attention", "general forward (slow)");
    general_attention(context, args);
  }
  if (args.sinks.defined()) apply_sinks(context, sinks_of(args, lse_strides(context, args, sequences)));
}

void attention_backward(const Context& context, const AttentionBackwardArgs& args) {
  const int64_t tokens = args.forward.q.shape[0];
  const int64_t num_heads = args.forward.options.num_heads;
  ArenaScope memory(context.scratch());
  const CudnnSequences sequences = take_sequences(memory, args.forward);
  const bool by_hopper = sm90::hopper_attention_backward_serves(context, args.forward);
  std::optional<sm90::HopperScratch> hopper_scratch;
  Tensor delta;
  if (by_hopper) {
    hopper_scratch.emplace(memory, args.forward);
  } else {
    delta = memory.take({num_heads, tokens}, DType::kF32);
  }
  const LseStrides strides = context.dry() ? LseStrides{} : lse_strides(context, args.forward, sequences);
  if (args.dsinks.wanted()) sinks_grad(context, {sinks_of(args.forward, strides), args.dout, args.dsinks});
  if (context.dry() || tokens == 0) return;
  context.note_kernel("attention", by_hopper ? "Hopper backward" : "general backward (slow)");
  if (!by_hopper) return general_attention_backward(context, args, delta, strides);
  sm90::prepare_hopper_backward(context, args, strides, *hopper_scratch);
  sm90::hopper_backward(context, args, *hopper_scratch);
}

}  // namespace hone::cuda
