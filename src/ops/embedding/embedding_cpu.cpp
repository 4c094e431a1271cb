#include <cstring>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/embedding/embedding.h"

namespace hone::cpu {

void embedding(const Context& context, const EmbeddingArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    const int64_t vocab = args.w.shape[0], hidden = args.w.shape[1];
    const int32_t* tokens = args.tokens.as<int32_t>();
    pool.parallel_ranges(args.tokens.numel(), 16, [&](int64_t row, int64_t end) {
      for (; row < end; ++row) {
        const int64_t token = tokens[row];
        HONE_ASSERT(token >= 0 && token < vocab);
        for_row_blocks(hidden, [&](int64_t begin, int64_t n) {
          float buffer[kRowBlock];
          store_block(math, load_block(math, args.w, token * hidden + begin, buffer, n), args.y, row * hidden + begin,
                      n);
        });
      }
    });
  });
}

namespace {

/// A task owns these columns of dw and processes all tokens: no sorting, no atomics, one order of additions.
constexpr int64_t kColumnsPerTask = 128;

void clear(ThreadPool& pool, const Tensor& dw) {
  pool.parallel_ranges(static_cast<int64_t>(dw.bytes()), int64_t{1} << 18, [&](int64_t begin, int64_t end) {
    std::memset(dw.data + begin, 0, static_cast<size_t>(end - begin));
  });
}

}  // namespace

void embedding_grad(const Context& context, const EmbeddingGradArgs& args) {
  context.launch([args](ThreadPool& pool) {
    if (args.dw.beta == 0.0f) clear(pool, args.dw.dst);
    const RowMath& math = row_math();
    const int64_t rows = args.tokens.numel(), hidden = args.dw.dst.shape[1];
    const int32_t* tokens = args.tokens.as<int32_t>();
    float* dw = args.dw.dst.as<float>();
    pool.parallel_ranges(hidden, kColumnsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < rows; ++row) {
        if (tokens[row] == args.padding_idx) continue;
        float buffer[kColumnsPerTask];
        const float* dy = load_block(math, args.dy, row * hidden + begin, buffer, end - begin);
        float* sums = dw + tokens[row] * hidden + begin;
        math.add(sums, dy, sums, end - begin);
      }
    });
  });
}

}  // namespace hone::cpu
