#include <cstring>

#include "core/cpu/thread_pool.h"
#include "ops/attention/attention_sinks.h"
#include "ops/attention/cached/cached_attention.h"
#include "ops/attention/vector/attention_block.h"

namespace hone::cpu {

namespace {

/// The tokens of a pass: rows of q, k, v, and positions in their sequence's cache.
struct Pass {
  const int32_t *offsets, *lengths, *tables;
  int64_t most_pages;

  explicit Pass(const KvCache& cache)
      : offsets(cache.added.cu_seqlens.as<int32_t>()),
        lengths(cache.lengths.as<int32_t>()),
        tables(cache.pages.as<int32_t>()),
        most_pages(cache.pages.shape[1]) {}
  int64_t row(int64_t n) const { return offsets[n]; }
  int64_t tokens(int64_t n) const { return offsets[n + 1] - offsets[n]; }
  int64_t position(int64_t n) const { return lengths[n]; }
  const int32_t* pages(int64_t n) const { return tables + n * most_pages; }
};

/// Copies the new rows of sequence n into its pages of the cache.
void append(const Pass& pass, const Tensor& rows, const Tensor& cache, int64_t n) {
  const auto row_bytes = static_cast<size_t>(cache.shape[2]) * size_of(cache.dtype);
  const int64_t end = pass.position(n) + pass.tokens(n);
  HONE_ASSERT(pass.position(n) >= 0 && end <= pass.most_pages * kCachePage, "the key-value cache is full");
  const std::byte* from = rows.data + static_cast<size_t>(pass.row(n)) * row_bytes;
  for (int64_t position = pass.position(n); position < end;) {
    const int32_t page = pass.pages(n)[position / kCachePage];
    HONE_ASSERT(page >= 0 && page < cache.shape[0], "the key-value cache has no such page");
    const int64_t of_page = std::min(end, (position / kCachePage + 1) * kCachePage) - position;
    const size_t bytes = static_cast<size_t>(of_page) * row_bytes;
    std::memcpy(cache.data + static_cast<size_t>(cache_row(pass.pages(n), position)) * row_bytes, from, bytes);
    position += of_page;
    from += bytes;
  }
}

/// A key-value head of all pages.
MatrixView cached_rows(const Tensor& cache, int64_t kv_head, int64_t head_dim) {
  return head_rows(cache.reshaped({cache.shape[0] * kCachePage, cache.shape[2]}), 0, kv_head, head_dim);
}

}  // namespace

void cached_attention(const Context& context, const CachedAttentionArgs& args) {
  const AttentionShape shape(args.options, args.q.dtype);
  const int64_t tokens = args.q.shape[0], sequences = args.cache.added.num_documents;
  ArenaScope memory(context.scratch());
  const SequenceBlocks blocks(memory, tokens, sequences, shape.query_tokens());
  const AttendScratch scratch(memory, shape, context.threads());
  const Tensor lse = args.sinks.defined() ? memory.take({args.options.num_heads, tokens}, DType::kF32) : Tensor{};
  context.launch([args, shape, tokens, sequences, blocks, scratch, lse](ThreadPool& pool) {
    scratch.prepare();
    const auto list = blocks.cut(args.cache.added.cu_seqlens);
    const Pass pass(args.cache);
    pool.parallel_for(sequences, [&](int64_t n, int) {
      append(pass, args.k, args.cache.k, n);
      append(pass, args.v, args.cache.v, n);
    });
    pool.parallel_for(static_cast<int64_t>(list.size()) * shape.num_kv_heads, [&](int64_t i, int thread) {
      const SequenceBlock& cut = list[static_cast<size_t>(i / shape.num_kv_heads)];
      const int64_t n = cut.sequence, kv_head = i % shape.num_kv_heads, first = cut.block * shape.query_tokens();
      const int64_t row = pass.row(n) + first, head = kv_head * shape.group();
      attend(shape,
             {.q = head_data(args.q, row, head, shape.head_dim),
              .out = head_data(args.out, row, head, shape.v_head_dim),
              .lse = lse.defined() ? lse.as<float>() + head * tokens + row : nullptr,
              .lse_stride = tokens,
              .tokens = std::min(shape.query_tokens(), pass.tokens(n) - first),
              .first_position = pass.position(n) + first,
              .k = cached_rows(args.cache.k, kv_head, shape.head_dim),
              .v = cached_rows(args.cache.v, kv_head, shape.v_head_dim),
              .pages = pass.pages(n)},
             scratch, thread);
    });
  });
  if (lse.defined()) apply_sinks(context, {args.sinks, args.out, lse});
}

void advance_cache(const Context& context, const AdvanceCacheArgs& args) {
  context.launch([args](ThreadPool&) {
    const int32_t* offsets = args.added.cu_seqlens.as<int32_t>();
    int32_t* lengths = args.lengths.as<int32_t>();
    for (int64_t n = 0; n < args.added.num_documents; ++n) lengths[n] += offsets[n + 1] - offsets[n];
  });
}

}  // namespace hone::cpu
