#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/swiglu/swiglu.h"

namespace hone::cpu {

namespace {

/// Calls body(at, from, count) for blocks of y [T, I]: y's elements start at `at`, those of gate and up at `from`.
template <class Body>
void for_blocks(ThreadPool& pool, const Shape& shape, int64_t pitch, const Body& body) {
  if (pitch == 0) {
    return parallel_blocks(pool, shape.numel(), [&](int64_t begin, int64_t n) { body(begin, begin, n); });
  }
  const int64_t columns = shape[1];
  pool.parallel_ranges(shape[0], 8, [&](int64_t row, int64_t end) {
    for (; row < end; ++row) {
      for_row_blocks(columns, [&](int64_t begin, int64_t n) { body(row * columns + begin, row * pitch + begin, n); });
    }
  });
}

}  // namespace

void swiglu(const Context& context, const SwigluArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    const bool rounds = args.y.dtype == DType::kBF16;
    for_blocks(pool, args.y.shape, args.pitch, [&](int64_t at, int64_t from, int64_t n) {
      float buffer[kRowBlock], y[kRowBlock];
      math.silu(load_block(math, args.gate, from, buffer, n), y, n);
      if (rounds) math.round(y, n);
      math.multiply(y, load_block(math, args.up, from, buffer, n), y, n);
      store_block(math, y, args.y, at, n);
    });
  });
}

void swiglu_grad(const Context& context, const SwigluGradArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    const bool rounds = args.gate.dtype == DType::kBF16;
    for_blocks(pool, args.gate.shape, args.pitch, [&](int64_t at, int64_t from, int64_t n) {
      float buffer[kRowBlock], dy_buffer[kRowBlock], silu[kRowBlock], slope[kRowBlock];
      math.silu_and_slope(load_block(math, args.gate, from, buffer, n), silu, slope, n);
      const float* dy = load_block(math, args.dy, at, dy_buffer, n);
      if (args.dup.wanted()) {
        if (rounds) math.round(silu, n);
        math.multiply(silu, dy, silu, n);
        store_block(math, silu, args.dup, from, n);
      }
      if (args.dgate.wanted()) {
        math.multiply(slope, dy, slope, n);
        math.multiply(slope, load_block(math, args.up, from, buffer, n), slope, n);
        store_block(math, slope, args.dgate, from, n);
      }
    });
  });
}

}  // namespace hone::cpu
