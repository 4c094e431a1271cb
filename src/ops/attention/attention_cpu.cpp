#include "ops/attention/amx/attention_cpu.h"
#include "core/cpu/thread_pool.h"
#include "ops/attention/attention_sinks.h"
#include "ops/attention/vector/attention_block.h"

namespace hone::cpu {

namespace {

void attention_by_gemm(const Context& context, const AttentionArgs& args) {
  const AttentionShape shape(args.options, args.q.dtype);
  const int64_t tokens = args.q.shape[0];
  ArenaScope memory(context.scratch());
  const SequenceBlocks blocks(memory, tokens, args.sequences.num_documents, shape.query_tokens());
  const AttendScratch scratch(memory, shape, context.threads());
  context.launch([args, shape, tokens, blocks, scratch](ThreadPool& pool) {
    scratch.prepare();
    const auto list = blocks.cut(args.sequences.cu_seqlens);
    const int32_t* offsets = args.sequences.cu_seqlens.as<int32_t>();
    pool.parallel_for(static_cast<int64_t>(list.size()) * shape.num_kv_heads, [&](int64_t i, int thread) {
      const SequenceBlock& cut = list[static_cast<size_t>(i / shape.num_kv_heads)];
      const int64_t kv_head = i % shape.num_kv_heads, head = kv_head * shape.group();
      const int64_t begin = offsets[cut.sequence], length = offsets[cut.sequence + 1] - begin;
      const int64_t first = cut.block * shape.query_tokens(), row = begin + first;
      attend(shape,
             {.q = head_data(args.q, row, head, shape.head_dim),
              .out = head_data(args.out, row, head, shape.v_head_dim),
              .lse = args.lse.as<float>() + head * tokens + row,
              .lse_stride = tokens,
              .tokens = std::min(shape.query_tokens(), length - first),
              .first_position = first,
              .k = head_rows(args.k, begin, kv_head, shape.head_dim),
              .v = head_rows(args.v, begin, kv_head, shape.v_head_dim)},
             scratch, thread);
    });
  });
}

}  // namespace

void attention(const Context& context, const AttentionArgs& args) {
  context.note_kernel("attention", attends_on_amx(args) ? "AMX forward" : name_of(active_isa()));
  attends_on_amx(args) ? attention_on_amx(context, args) : attention_by_gemm(context, args);
  if (args.sinks.defined()) apply_sinks(context, {args.sinks, args.out, args.lse});
}

}  // namespace hone::cpu
