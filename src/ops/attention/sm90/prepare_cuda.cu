// Scratch and arguments of attention's backward on Hopper: tiles, statistics of queries, counters for the order of dq.
#include "kernels/cuda/tiers.h"
#include "ops/attention/sm90/attention_cuda.h"

namespace hone::cuda::sm90 {

HopperScratch::HopperScratch(ArenaScope& memory, const AttentionArgs& args) : tiles(memory, args), stats(memory, args) {
  const int64_t tokens = args.q.shape[0], heads = args.options.num_heads;
  const HopperSizes& sizes = *hopper_sizes(args.options.head_dim, args.options.v_head_dim);
  query_blocks = tokens / sizes.queries;
  turns = memory.take({sizes.ctas, heads, query_blocks}, DType::kI32);
  partial_dq = memory.take({heads, query_blocks, sizes.queries, sizes.head_dim}, DType::kF32);
}

bool hopper_attention_may_serve(const Context& context, const AttentionArgs& args) {
  const AttentionOptions& options = args.options;
  return kernel_tiers(context).attention == Tier::kSm90 && args.q.dtype == DType::kBF16 && options.head_dim % 8 == 0 &&
         options.v_head_dim % 8 == 0 && args.q.shape[0] <= INT32_MAX / 2 && options.sliding_window <= INT32_MAX / 2;
}

bool hopper_attention_backward_serves(const Context& context, const AttentionArgs& args) {
  return hopper_attention_may_serve(context, args) &&
         hopper_sizes(args.options.head_dim, args.options.v_head_dim) != nullptr;
}

void prepare_hopper_backward(const Context& context, const AttentionBackwardArgs& args, const HopperScratch& scratch) {
  const AttentionArgs& forward = args.forward;
  const cudaStream_t stream = stream_of(context);
  list_attention_tiles(context, forward, TileWork::kQueries, scratch.tiles);
  if (scratch.query_blocks > 0) {
    check(cudaMemsetAsync(scratch.turns.data, 0, scratch.turns.bytes(), stream), "clearing turns");
  }
  compute_query_stats(context, args, scratch.stats);
}

HopperBackward::HopperBackward(const AttentionBackwardArgs& args, const HopperScratch& scratch,
                               const TileOrder& order_of)
    : order(order_of),
      shifts(elements<float>(scratch.stats.shifts)),
      deltas(elements<float>(scratch.stats.deltas)),
      stats_rows(scratch.stats.rows),
      turns(elements<int>(scratch.turns)),
      partial_dq(elements<float>(scratch.partial_dq)),
      query_blocks(scratch.query_blocks),
      num_heads(static_cast<int>(args.forward.options.num_heads)),
      num_kv_heads(static_cast<int>(args.forward.options.num_kv_heads)),
      head_dim(static_cast<int>(args.forward.options.head_dim)),
      v_head_dim(static_cast<int>(args.forward.options.v_head_dim)),
      scale(args.forward.options.scale),
      window(static_cast<int>(args.forward.options.sliding_window)),
      dq(args.dq),
      dk(args.dk),
      dv(args.dv) {}

}  // namespace hone::cuda::sm90
