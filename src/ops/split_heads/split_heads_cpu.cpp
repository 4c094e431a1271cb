#include <cstring>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/split_heads/split_heads.h"

namespace hone::cpu {

namespace {

/// Calls run(part, column of x, column of its output, width) for every head and part.
template <class Run>
void for_runs(const HeadParts& parts, const Run& run) {
  const int64_t width = parts.width();
  int64_t before = 0;
  for (size_t p = 0; p < parts.list.size(); ++p) {
    const int64_t own = parts.list[p].width, begin = parts.begin_in_output(p);
    for (int64_t head = 0; head < parts.heads; ++head) {
      run(parts.list[p], head * width + before, begin + head * own, own);
    }
    before += own;
  }
}

constexpr int64_t kRowsPerTask = 16;

}  // namespace

void split_heads(const Context& context, const SplitHeadsArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const size_t element = size_of(args.x.dtype);
    pool.parallel_ranges(args.x.shape[0], kRowsPerTask, [&](int64_t begin, int64_t end) {
      for_runs(args.parts, [&](const HeadPart& part, int64_t from, int64_t to, int64_t width) {
        const Tensor& y = args.y[static_cast<size_t>(part.output)];
        for (int64_t row = begin; row < end; ++row) {
          std::memcpy(y.data + static_cast<size_t>(row * y.shape[1] + to) * element,
                      args.x.data + static_cast<size_t>(row * args.x.shape[1] + from) * element,
                      static_cast<size_t>(width) * element);
        }
      });
    });
  });
}

void split_heads_grad(const Context& context, const SplitHeadsGradArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    const int64_t stride = args.dx.dst.shape[1];
    pool.parallel_ranges(args.dx.dst.shape[0], kRowsPerTask, [&](int64_t begin, int64_t end) {
      for_runs(args.parts, [&](const HeadPart& part, int64_t to, int64_t from, int64_t width) {
        const Tensor& dy = args.dy[static_cast<size_t>(part.output)];
        for (int64_t row = begin; row < end; ++row) {
          for_row_blocks(width, [&](int64_t offset, int64_t n) {
            float values[kRowBlock] = {};
            if (dy.defined()) {
              const float* gradient = load_block(math, dy, row * dy.shape[1] + from + offset, values, n);
              if (gradient != values) std::memcpy(values, gradient, static_cast<size_t>(n) * sizeof(float));
            }
            store_block(math, values, args.dx, row * stride + to + offset, n);
          });
        }
      });
    });
  });
}

}  // namespace hone::cpu
