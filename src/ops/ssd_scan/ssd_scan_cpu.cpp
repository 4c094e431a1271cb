#include <algorithm>
#include <cmath>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/ssd_scan/ssd_chunk_cpu.h"

namespace hone::cpu {

namespace {

/// One document and block of heads, chunk by chunk.
struct Forward {
  SsdKeys keys;
  SsdChunk chunk;
  float *states, *scaled, *out;

  Forward(const SsdHeads& heads, FloatStack& memory)
      : keys(heads, memory),
        chunk(heads, memory),
        states(memory.take(kSsdHeadBlock * heads.state_size * heads.head_dim)),
        scaled(memory.take(kSsdChunk * heads.head_dim)),
        out(memory.take(kSsdChunk * heads.head_dim)) {}

  void run(const SsdScanArgs& args, const SsdHeadBlock& block, int64_t begin, int64_t end) {
    const int64_t size = args.heads.state_size * args.heads.head_dim;
    for (int64_t row = begin; row < end; row += kSsdChunk) {
      const int64_t n = std::min(kSsdChunk, end - row);
      keys.load(args, block.group, row, n);
      for (int64_t i = 0; i < block.count; ++i) {
        float* state = states + i * size;
        chunk.load(args, keys, block.first + i, row, n);
        write(args, block.first + i, row, row == begin ? nullptr : state);
        if (row + kSsdChunk < end) chunk.advance(args.heads, keys, state, row == begin, scaled);
      }
    }
  }

  /// `state` is the state before the chunk, null for zeros.
  void write(const SsdScanArgs& args, int64_t head, int64_t row, const float* state) {
    const int64_t dim = args.heads.head_dim, n = chunk.n;
    const float skip = ssd_element(args.d, head);
    gemm_serial({.m = n,
                 .n = dim,
                 .k = n,
                 .a = ssd_rows(chunk.p, kSsdChunk),
                 .b = ssd_rows(chunk.v, dim),
                 .c = out,
                 .ldc = dim});
    if (state != nullptr) {
      gemm_serial({.m = n,
                   .n = dim,
                   .k = args.heads.state_size,
                   .a = ssd_rows(keys.c, args.heads.state_size),
                   .b = ssd_rows(state, dim),
                   .c = out,
                   .ldc = dim,
                   .beta = 1.0f,
                   .row_scale = chunk.grown});
    }
    for (int64_t i = 0; i < n; ++i) {
      row_math().add_scaled(skip, chunk.x + i * dim, out + i * dim, dim);
      store_block(row_math(), static_cast<const float*>(out + i * dim), args.out,
                  (row + i) * args.heads.inner() + head * dim, dim);
    }
  }
};

/// One document and block of heads token by token, from states.
struct Recurrence {
  float *b, *c, *x, *out;

  Recurrence(const SsdHeads& heads, FloatStack& memory)
      : b(memory.take(heads.state_size)),
        c(memory.take(heads.state_size)),
        x(memory.take(heads.head_dim)),
        out(memory.take(heads.head_dim)) {}

  /// `states` are those of the block's heads.
  void run(const SsdScanArgs& args, const SsdHeadBlock& block, int64_t begin, int64_t end, float* states) {
    const RowMath& math = row_math();
    const int64_t dim = args.heads.head_dim, size = args.heads.state_size;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t keys = row * args.heads.width() + args.heads.inner() + block.group * size;
      load_ssd_row(args.xbc, keys, b, size);
      load_ssd_row(args.xbc, keys + args.heads.keys(), c, size);
      for (int64_t i = 0; i < block.count; ++i) {
        const int64_t head = block.first + i;
        const SsdStep step = ssd_step(args, row, head);
        const float kept = std::exp(step.g);
        load_ssd_row(args.xbc, row * args.heads.width() + head * dim, x, dim);
        math.scale(ssd_element(args.d, head), x, out, dim);
        for (int64_t k = 0; k < size; ++k) {
          float* state = states + (i * size + k) * dim;
          math.scale(kept, state, state, dim);
          math.add_scaled(step.delta * b[k], x, state, dim);
          math.add_scaled(c[k], state, out, dim);
        }
        store_block(math, static_cast<const float*>(out), args.out, row * args.heads.inner() + head * dim, dim);
      }
    }
  }
};

/// Runs body(workspace, document, block, begin, end) for every document that has rows and every block of heads.
template <class Workspace, class Body>
void for_blocks(const Context& context, const SsdScanArgs& args, const Body& body) {
  const int64_t floats = workspace_floats<Workspace>(args.heads);
  ArenaScope memory(context.scratch());
  const Tensor scratch = memory.take({context.threads(), floats}, DType::kF32);
  context.launch([args, scratch, floats, body](ThreadPool& pool) {
    const int32_t* offsets = args.sequences.cu_seqlens.as<int32_t>();
    const int64_t blocks = args.heads.num_groups * args.heads.blocks();
    pool.parallel_for(args.sequences.num_documents * blocks, [&](int64_t i, int thread) {
      const int64_t document = i / blocks;
      if (offsets[document] == offsets[document + 1]) return;
      FloatStack stack(scratch.as<float>() + thread * floats);
      Workspace workspace(args.heads, stack);
      body(workspace, document, ssd_head_block(args.heads, i % blocks), offsets[document], offsets[document + 1]);
    });
  });
}

}  // namespace

void ssd_scan(const Context& context, const SsdScanArgs& args) {
  if (!args.state.s.defined()) {
    for_blocks<Forward>(context, args,
                        [args](Forward& forward, int64_t, const SsdHeadBlock& block, int64_t begin, int64_t end) {
                          forward.run(args, block, begin, end);
                        });
    return;
  }
  for_blocks<Recurrence>(
      context, args,
      [args](Recurrence& recurrence, int64_t document, const SsdHeadBlock& block, int64_t begin, int64_t end) {
        const int64_t size = args.heads.state_size * args.heads.head_dim;
        float* states = args.state.s.as<float>() + (document * args.heads.num_heads + block.first) * size;
        if (args.state.lengths.as<int32_t>()[document] == 0) {
          std::fill_n(states, block.count * size, 0.0f);
        }
        recurrence.run(args, block, begin, end, states);
      });
}

}  // namespace hone::cpu
