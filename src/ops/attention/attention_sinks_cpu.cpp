#include <algorithm>
#include <cmath>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/attention/attention_sinks.h"

namespace hone::cpu {

namespace {

constexpr int64_t kRows = 64;  // rows of a task and of a chunk of the gradient's sum

float sink_of(const Tensor& sinks, int64_t head) {
  return sinks.dtype == DType::kF32 ? sinks.as<float>()[head] : static_cast<float>(sinks.as<BFloat16>()[head]);
}

float& lse_of(const AttentionSinks& args, int64_t head, int64_t row) {
  return args.lse.as<float>()[head * args.out.shape[0] + row];
}

}  // namespace

void apply_sinks(const Context& context, const AttentionSinks& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    const int64_t heads = args.sinks.numel(), width = args.out.shape[1], dim = width / heads;
    pool.parallel_ranges(args.out.shape[0], kRows, [&](int64_t begin, int64_t end) {
      float buffer[kRowBlock];
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t head = 0; head < heads; ++head) {
          const float sink = sink_of(args.sinks, head);
          float& lse = lse_of(args, head, row);
          const float kept = 1.0f / (1.0f + std::exp(sink - lse));
          lse = std::max(lse, sink) + std::log1p(std::exp(-std::fabs(lse - sink)));
          for_row_blocks(dim, [&](int64_t column, int64_t n) {
            const int64_t at = row * width + head * dim + column;
            math.scale(kept, load_block(math, args.out, at, buffer, n), buffer, n);
            store_block(math, static_cast<const float*>(buffer), args.out, at, n);
          });
        }
      }
    });
  });
}

void sinks_grad(const Context& context, const AttentionSinksGrad& args) {
  const int64_t heads = args.forward.sinks.numel(), rows = args.dout.shape[0], chunks = (rows + kRows - 1) / kRows;
  ArenaScope memory(context.scratch());
  const Tensor partial = memory.take({chunks, heads}, DType::kF32);
  context.launch([args, heads, rows, chunks, partial](ThreadPool& pool) {
    const RowMath& math = row_math();
    const int64_t width = args.dout.shape[1], dim = width / heads;
    pool.parallel_for(chunks * heads, [&](int64_t task, int) {
      const int64_t chunk = task / heads, head = task % heads;
      const float sink = sink_of(args.forward.sinks, head);
      float a[kRowBlock], b[kRowBlock], sum = 0.0f;
      for (int64_t row = chunk * kRows; row < std::min((chunk + 1) * kRows, rows); ++row) {
        float delta = 0.0f;
        for_row_blocks(dim, [&](int64_t column, int64_t n) {
          const int64_t at = row * width + head * dim + column;
          delta += math.dot(load_block(math, args.dout, at, a, n), load_block(math, args.forward.out, at, b, n), n);
        });
        sum -= std::exp(sink - lse_of(args.forward, head, row)) * delta;
      }
      partial.as<float>()[task] = sum;
    });
    float* dsinks = args.dsinks.dst.as<float>();
    for (int64_t head = 0; head < heads; ++head) {
      float sum = args.dsinks.beta != 0.0f ? dsinks[head] : 0.0f;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += partial.as<float>()[chunk * heads + head];
      dsinks[head] = sum;
    }
  });
}

}  // namespace hone::cpu
