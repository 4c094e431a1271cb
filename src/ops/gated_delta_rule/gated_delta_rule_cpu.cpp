#include <algorithm>
#include <cmath>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/gated_delta_rule/delta_chunk_cpu.h"

namespace hone::cpu {

namespace {

/// One document and value head, chunk by chunk.
struct Forward {
  DeltaKeys keys;
  DeltaChunk chunk;
  float *state, *scaled, *p, *out;

  Forward(const DeltaRuleArgs& args, FloatStack& memory)
      : keys(args, memory),
        chunk(args, memory),
        state(memory.take(args.heads.key_dim * args.heads.value_dim)),
        scaled(memory.take(kDeltaChunk * args.heads.value_dim)),
        p(memory.take(kDeltaChunk * kDeltaChunk)),
        out(memory.take(kDeltaChunk * args.heads.value_dim)) {}

  void run(const DeltaRuleArgs& args, int64_t head, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row += kDeltaChunk) {
      const bool first = row == begin;
      keys.load(args, head / args.heads.group(), row, std::min(kDeltaChunk, end - row));
      chunk.load(args, keys, head, row, std::min(kDeltaChunk, end - row), first ? nullptr : state);
      write(args, head, row, first);
      if (row + kDeltaChunk < end) chunk.advance(args, keys, state, first, scaled);
    }
  }

  void write(const DeltaRuleArgs& args, int64_t head, int64_t row, bool first) {
    const int64_t dim = args.heads.value_dim, n = chunk.n;
    chunk.scores(args, keys, p);
    gemm_serial(
        {.m = n, .n = dim, .k = n, .a = rows_of(p, kDeltaChunk), .b = rows_of(chunk.fresh, dim), .c = out, .ldc = dim});
    if (!first) {
      gemm_serial({.m = n,
                   .n = dim,
                   .k = args.heads.key_dim,
                   .a = rows_of(keys.q, args.heads.key_dim),
                   .b = rows_of(state, dim),
                   .c = out,
                   .ldc = dim,
                   .beta = 1.0f,
                   .row_scale = chunk.grown});
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = ((row + i) * args.heads.num_value_heads + head) * dim;
      store_block(row_math(), static_cast<const float*>(out + i * dim), args.out, at, dim);
    }
  }
};

/// Token by token, from a state.
struct Recurrence {
  DeltaKeys keys;
  float *v, *delta;

  Recurrence(const DeltaRuleArgs& args, FloatStack& memory)
      : keys(args, memory), v(memory.take(args.heads.value_dim)), delta(memory.take(args.heads.value_dim)) {}

  void run(const DeltaRuleArgs& args, int64_t head, int64_t begin, int64_t end, float* state) {
    const int64_t dim = args.heads.value_dim;
    const int64_t values = 2 * args.heads.num_key_heads * args.heads.key_dim + head * dim;
    for (int64_t row = begin; row < end; ++row) {
      keys.load(args, head / args.heads.group(), row, 1);
      const float* raw = load_block(row_math(), args.qkv, row * args.heads.width() + values, v, dim);
      if (raw != v) std::copy_n(raw, dim, v);
      step(args.heads, delta_gate(args, row, head), state);
      store_block(row_math(), static_cast<const float*>(v), args.out, (row * args.heads.num_value_heads + head) * dim,
                  dim);
    }
  }

  /// Replaces v by the output.
  void step(const DeltaHeads& heads, const DeltaGate& gate, float* state) {
    const RowMath& math = row_math();
    const int64_t dim = heads.value_dim;
    const float kept = std::exp(gate.g);
    std::fill_n(delta, dim, 0.0f);
    for (int64_t i = 0; i < heads.key_dim; ++i) {
      math.scale(kept, state + i * dim, state + i * dim, dim);
      math.add_scaled(keys.k[i], state + i * dim, delta, dim);
    }
    for (int64_t i = 0; i < dim; ++i) delta[i] = gate.beta * (v[i] - delta[i]);
    std::fill_n(v, dim, 0.0f);
    for (int64_t i = 0; i < heads.key_dim; ++i) {
      math.add_scaled(keys.k[i], delta, state + i * dim, dim);
      math.add_scaled(keys.q[i], state + i * dim, v, dim);
    }
  }
};

/// Runs body(workspace, document, head, begin, end) for every document that has rows and every value head.
template <class Workspace, class Body>
void for_heads(const Context& context, const DeltaRuleArgs& args, const Body& body) {
  const int64_t floats = workspace_floats<Workspace>(args);
  ArenaScope memory(context.scratch());
  const Tensor scratch = memory.take({context.threads(), floats}, DType::kF32);
  context.launch([args, scratch, floats, body](ThreadPool& pool) {
    const int32_t* offsets = args.sequences.cu_seqlens.as<int32_t>();
    const int64_t heads = args.heads.num_value_heads;
    pool.parallel_for(args.sequences.num_documents * heads, [&](int64_t i, int thread) {
      const int64_t document = i / heads;
      if (offsets[document] == offsets[document + 1]) return;
      FloatStack stack(scratch.as<float>() + thread * floats);
      Workspace workspace(args, stack);
      body(workspace, document, i % heads, offsets[document], offsets[document + 1]);
    });
  });
}

}  // namespace

void gated_delta_rule(const Context& context, const DeltaRuleArgs& args) {
  if (!args.state.s.defined()) {
    for_heads<Forward>(context, args, [args](Forward& forward, int64_t, int64_t head, int64_t begin, int64_t end) {
      forward.run(args, head, begin, end);
    });
    return;
  }
  for_heads<Recurrence>(
      context, args, [args](Recurrence& recurrence, int64_t document, int64_t head, int64_t begin, int64_t end) {
        const int64_t size = args.heads.key_dim * args.heads.value_dim;
        float* state = args.state.s.as<float>() + (document * args.heads.num_value_heads + head) * size;
        if (args.state.lengths.as<int32_t>()[document] == 0) std::fill_n(state, size, 0.0f);
        recurrence.run(args, head, begin, end, state);
      });
}

}  // namespace hone::cpu
