#include "ops/row_math/row_blocks.h"
#include "ops/swiglu/swiglu.h"

namespace hone::cpu {

void swiglu(const Context& context, const SwigluArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    const bool rounds = args.y.dtype == DType::kBF16;
    parallel_blocks(pool, args.y.numel(), [&](int64_t begin, int64_t n) {
      float buffer[kRowBlock], y[kRowBlock];
      math.silu(load_block(math, args.gate, begin, buffer, n), y, n);
      if (rounds) math.round(y, n);
      math.multiply(y, load_block(math, args.up, begin, buffer, n), y, n);
      store_block(math, y, args.y, begin, n);
    });
  });
}

void swiglu_grad(const Context& context, const SwigluGradArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    const bool rounds = args.gate.dtype == DType::kBF16;
    parallel_blocks(pool, args.gate.numel(), [&](int64_t begin, int64_t n) {
      float buffer[kRowBlock], dy_buffer[kRowBlock], silu[kRowBlock], slope[kRowBlock];
      math.silu_and_slope(load_block(math, args.gate, begin, buffer, n), silu, slope, n);
      const float* dy = load_block(math, args.dy, begin, dy_buffer, n);
      if (args.dup.wanted()) {
        if (rounds) math.round(silu, n);
        math.multiply(silu, dy, silu, n);
        store_block(math, silu, args.dup, begin, n);
      }
      if (args.dgate.wanted()) {
        math.multiply(slope, dy, slope, n);
        math.multiply(slope, load_block(math, args.up, begin, buffer, n), slope, n);
        store_block(math, slope, args.dgate, begin, n);
      }
    });
  });
}

}  // namespace hone::cpu
