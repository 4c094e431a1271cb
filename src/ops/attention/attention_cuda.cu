// Selects the kernels for Hopper, those for other tensor cores, which Hopper runs for heads that its own do not have,
// or the general ones.
#include <optional>

#include "ops/attention/attention_sinks.h"
#include "ops/attention/general/attention_cuda.h"
#include "ops/attention/sm80/attention_cuda.h"
#include "ops/attention/sm90/attention_cuda.h"

namespace hone::cuda {

namespace {

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
                                        .cached = {},
                                        .least_queries = 0});
  });
}

}  // namespace

void attention(const Context& context, const AttentionArgs& args) {
  ArenaScope memory(context.scratch());
  const AttentionTiles tiles(memory, args);
  if (context.dry() || args.q.shape[0] == 0) return;
  if (sm90::hopper_attention_serves(context, args)) {
    context.note_kernel("attention", "sm90 forward");
    sm90::hopper_attention(context, args, tiles);
  } else if (sm80::sm80_attention_serves(context, args)) {
    context.note_kernel("attention", "sm80 forward");
    sm80::sm80_attention(context, args, tiles);
  } else {
    context.note_kernel("attention", "general forward (slow)");
    general_attention(context, args);
  }
  if (args.sinks.defined()) apply_sinks(context, {args.sinks, args.out, args.lse});
}

void attention_backward(const Context& context, const AttentionBackwardArgs& args) {
  const AttentionArgs& forward = args.forward;
  const int64_t tokens = forward.q.shape[0];
  ArenaScope memory(context.scratch());
  const bool by_hopper = sm90::hopper_attention_backward_serves(context, forward);
  const bool by_sm80 = !by_hopper && sm80::sm80_attention_serves(context, forward);
  std::optional<sm90::HopperScratch> hopper_scratch;
  std::optional<sm80::BackwardScratch> sm80_scratch;
  Tensor delta;
  if (by_hopper) {
    hopper_scratch.emplace(memory, forward);
  } else if (by_sm80) {
    sm80_scratch.emplace(context, memory, forward);
  } else {
    delta = memory.take({forward.options.num_heads, tokens}, DType::kF32);
  }
  if (args.dsinks.wanted()) sinks_grad(context, {{forward.sinks, forward.out, forward.lse}, args.dout, args.dsinks});
  if (context.dry() || tokens == 0) return;
  context.note_kernel("attention", by_hopper ? "sm90 backward" : by_sm80 ? "sm80 backward" : "general backward (slow)");
  if (by_sm80) return sm80::sm80_attention_backward(context, args, *sm80_scratch);
  if (!by_hopper) return general_attention_backward(context, args, delta);
  sm90::prepare_hopper_backward(context, args, *hopper_scratch);
  sm90::hopper_backward(context, args, *hopper_scratch);
}

}  // namespace hone::cuda
