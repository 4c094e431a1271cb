#include "core/cpu/thread_pool.h"
#include "ops/attention/amx/attention_cpu.h"
#include "ops/attention/attention_sinks.h"
#include "ops/attention/vector/attention_block.h"
#include "ops/attention/vector/score_kernel.h"

namespace hone::cpu {

namespace {

/// Queries and keys are divided at the same positions into blocks of kTokens. The pairs (queries i, keys i − distance)
/// of one distance share no queries and no keys, so they run in parallel, and over increasing distances each gradient
/// is summed in a fixed order, without a second pass over the scores and without atomics.
constexpr int64_t kTokens = 128;
/// A block of queries against the keys of its own tokens is divided further, since half of those pairs are masked.
constexpr int64_t kDiagonalTokens = 64;

/// A gradient as float32 sums: the destination itself, or scratch that is added to it at the end.
struct Accumulator {
  GradDest dest;
  Tensor sums;

  Accumulator(ArenaScope& memory, const GradDest& destination) : dest(destination) {
    if (!dest.wanted()) return;
    sums = dest.dst.dtype == DType::kF32 ? dest.dst : memory.take(dest.dst.shape, DType::kF32);
  }
  bool wanted() const { return dest.wanted(); }
  bool needs_store() const { return wanted() && sums.data != dest.dst.data; }
  /// Beta of the first product that writes an element.
  float first_beta() const { return needs_store() ? 0.0f : dest.beta; }

  void store(ThreadPool& pool) const {
    if (!needs_store()) return;
    const float* from = sums.as<float>();
    auto* to = dest.dst.as<BFloat16>();
    const bool accumulate = dest.beta != 0.0f;
    pool.parallel_ranges(sums.numel(), 16384, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        to[i] = BFloat16(accumulate ? from[i] + static_cast<float>(to[i]) : from[i]);
    });
  }
};

/// A block of queries of one head against one block of keys.
struct BlockPair {
  int64_t head, kv_head;
  int64_t query_row, query_tokens;       ///< rows of q
  int64_t key_row, key_tokens;           ///< rows of k
  int64_t first_query, first_key;        ///< positions in the document
  bool first_of_queries, first_of_keys;  ///< the gradients have not been written yet
};

struct Backward {
  AttentionArgs forward;
  Tensor dout;
  AttentionShape shape;
  Accumulator dq, dk, dv;
  Tensor delta;    // [Hq, T]
  Tensor scratch;  // [threads, 2, kTokens, kTokens]

  void run(const BlockPair& pair, int thread) const;
  void make_delta(ThreadPool& pool) const;
};

/// gradient += alpha a b (product.n dimensions of a head), rows of the block from `row` on.
void add_product(const Accumulator& gradient, int64_t row, int64_t head, GemmArgs product, bool first) {
  product.ldc = gradient.sums.shape[1];
  product.c = gradient.sums.as<float>() + row * product.ldc + head * product.n;
  product.beta = first ? gradient.first_beta() : 1.0f;
  gemm_serial(product);
}

void Backward::run(const BlockPair& pair, int thread) const {
  const int64_t tokens = forward.q.shape[0], m = pair.query_tokens, n = pair.key_tokens;
  const int64_t dim = shape.head_dim, v_dim = shape.v_head_dim;
  const MatrixView q = head_rows(forward.q, pair.query_row, pair.head, dim),
                   d_out = head_rows(dout, pair.query_row, pair.head, v_dim);
  const MatrixView k = head_rows(forward.k, pair.key_row, pair.kv_head, dim),
                   v = head_rows(forward.v, pair.key_row, pair.kv_head, v_dim);
  float* p = scratch.as<float>() + thread * 2 * kTokens * kTokens;
  float* ds = p + kTokens * kTokens;
  const int64_t stats = pair.head * tokens + pair.query_row;
  const ScoreBlock block{.scores = p,
                         .stride = kTokens,
                         .rows = m,
                         .cols = n,
                         .first_query = pair.first_query,
                         .first_key = pair.first_key,
                         .group = 1,
                         .window = shape.window};
  gemm_serial({.m = m, .n = n, .k = dim, .a = q, .b = transposed(k), .c = p, .ldc = kTokens, .alpha = shape.scale});
  score_kernel().probabilities(block, forward.lse.as<float>() + stats);
  const MatrixView probabilities{.data = p, .row_stride = kTokens}, gradients{.data = ds, .row_stride = kTokens};
  if (dv.wanted()) {
    add_product(dv, pair.key_row, pair.kv_head,
                {.m = n, .n = v_dim, .k = m, .a = transposed(probabilities), .b = d_out}, pair.first_of_keys);
  }
  if (!dq.wanted() && !dk.wanted()) return;
  gemm_serial({.m = m, .n = n, .k = v_dim, .a = d_out, .b = transposed(v), .c = ds, .ldc = kTokens});
  score_kernel().gradients(block, ds, delta.as<float>() + stats);
  if (dq.wanted()) {
    add_product(dq, pair.query_row, pair.head, {.m = m, .n = dim, .k = n, .a = gradients, .b = k, .alpha = shape.scale},
                pair.first_of_queries);
  }
  if (dk.wanted()) {
    add_product(dk, pair.key_row, pair.kv_head,
                {.m = n, .n = dim, .k = m, .a = transposed(gradients), .b = q, .alpha = shape.scale},
                pair.first_of_keys);
  }
}

/// delta[h, t] = dout · out.
void Backward::make_delta(ThreadPool& pool) const {
  const int64_t tokens = dout.shape[0], dim = shape.v_head_dim, width = dout.shape[1];
  dispatch_float(dout.dtype, [&](auto element) {
    using T = decltype(element);
    pool.parallel_ranges(tokens, 64, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        const T* a = dout.as<T>() + token * width;
        const T* b = forward.out.as<T>() + token * width;
        for (int64_t head = 0; head < shape.num_heads; ++head, a += dim, b += dim) {
          float sum = 0.0f;
          for (int64_t i = 0; i < dim; ++i) sum += static_cast<float>(a[i]) * static_cast<float>(b[i]);
          delta.as<float>()[head * tokens + token] = sum;
        }
      }
    });
  });
}

/// All pairs of one distance for one block of queries and one key-value head.
void run_pairs(const Backward& backward, const SequenceBlock& cut, int64_t distance, int64_t kv_head, int thread) {
  const AttentionShape& shape = backward.shape;
  const int32_t* offsets = backward.forward.sequences.cu_seqlens.as<int32_t>();
  const int64_t begin = offsets[cut.sequence], length = offsets[cut.sequence + 1] - begin;
  const int64_t query = cut.block * kTokens, key = (cut.block - distance) * kTokens;
  const int64_t key_tokens = std::min(kTokens, length - key), step = distance == 0 ? kDiagonalTokens : kTokens;
  for (int64_t i = 0; i < shape.group(); ++i) {
    const int64_t query_end = std::min(query + kTokens, length);
    // The last part first: it attends to all keys of the block, so it may overwrite their gradients.
    for (int64_t end = query_end; end > query; end = query + (end - 1 - query) / step * step) {
      const int64_t first = query + (end - 1 - query) / step * step;
      backward.run({.head = kv_head * shape.group() + i,
                    .kv_head = kv_head,
                    .query_row = begin + first,
                    .query_tokens = end - first,
                    .key_row = begin + key,
                    .key_tokens = std::min(key_tokens, end - key),
                    .first_query = first,
                    .first_key = key,
                    .first_of_queries = distance == 0,
                    .first_of_keys = distance == 0 && i == 0 && end == query_end},
                   thread);
    }
  }
}

void backward_by_gemm(const Context& context, const AttentionBackwardArgs& args) {
  const int64_t tokens = args.forward.q.shape[0];
  ArenaScope memory(context.scratch());
  const SequenceBlocks blocks(memory, tokens, args.forward.sequences.num_documents, kTokens);
  const Backward backward{.forward = args.forward,
                          .dout = args.dout,
                          .shape = AttentionShape(args.forward.options, args.forward.q.dtype),
                          .dq = Accumulator(memory, args.dq),
                          .dk = Accumulator(memory, args.dk),
                          .dv = Accumulator(memory, args.dv),
                          .delta = memory.take({args.forward.options.num_heads, tokens}, DType::kF32),
                          .scratch = memory.take({context.threads(), 2, kTokens, kTokens}, DType::kF32)};
  context.launch([backward, blocks](ThreadPool& pool) {
    const auto list = blocks.cut(backward.forward.sequences.cu_seqlens);
    const int64_t kv_heads = backward.shape.num_kv_heads;
    backward.make_delta(pool);
    const int64_t last = list.empty() ? -1 : last_distance(list.front().block + 1, backward.shape.window, kTokens);
    for (int64_t distance = 0; distance <= last; ++distance) {
      // The list has the last blocks of documents first: those with a partner at this distance come first.
      const auto end = std::partition_point(list.begin(), list.end(),
                                            [&](const SequenceBlock& cut) { return cut.block >= distance; });
      pool.parallel_for((end - list.begin()) * kv_heads, [&](int64_t i, int thread) {
        run_pairs(backward, list[static_cast<size_t>(i / kv_heads)], distance, i % kv_heads, thread);
      });
    }
    for (const Accumulator* gradient : {&backward.dq, &backward.dk, &backward.dv}) gradient->store(pool);
  });
}

}  // namespace

void attention_backward(const Context& context, const AttentionBackwardArgs& args) {
  const AttentionArgs& forward = args.forward;
  if (args.dsinks.wanted()) {
    sinks_grad(context, {{forward.sinks, forward.out, forward.lse}, args.dout, args.dsinks});
  }
  context.note_kernel("attention", attends_on_amx(forward) ? "AMX backward" : name_of(active_isa()));
  attends_on_amx(forward) ? attention_backward_on_amx(context, args) : backward_by_gemm(context, args);
}

}  // namespace hone::cpu
