#include "kernels/cpu/mlp_activation_cpu.h"
#include "core/cpu/thread_pool.h"
#include "ops/mlp_activation/mlp_activation.h"

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

void mlp_activation(const Context& context, const MlpActivationArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    const bool rounds = args.y.dtype == DType::kBF16, gated = args.function.gated();
    for_blocks(pool, args.y.shape, args.pitch, [&](int64_t at, int64_t from, int64_t n) {
      float gate_buffer[kRowBlock], up_buffer[kRowBlock];
      ActivationBlock f(math, args.function);
      f.compute(load_block(math, args.gate, from, gate_buffer, n),
                gated ? load_block(math, args.up, from, up_buffer, n) : nullptr, n);
      if (rounds && gated) math.round(f.glu, n);
      f.multiply(f.glu, n);
      store_block(math, static_cast<const float*>(f.glu), args.y, at, n);
    });
  });
}

void mlp_activation_grad(const Context& context, const MlpActivationGradArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    const bool rounds = args.gate.dtype == DType::kBF16, gated = args.function.gated();
    for_blocks(pool, args.gate.shape, args.pitch, [&](int64_t at, int64_t from, int64_t n) {
      float gate_buffer[kRowBlock], up_buffer[kRowBlock], dy_buffer[kRowBlock];
      ActivationBlock f(math, args.function);
      f.compute(load_block(math, args.gate, from, gate_buffer, n),
                gated ? load_block(math, args.up, from, up_buffer, n) : nullptr, n, /*slopes=*/true);
      const float* dy = load_block(math, args.dy, at, dy_buffer, n);
      if (args.dup.wanted()) {
        if (rounds) math.round(f.glu, n);
        math.multiply(f.glu, dy, f.glu, n);
        store_block(math, f.glu, args.dup, from, n);
      }
      if (args.dgate.wanted()) {
        math.multiply(f.glu_slope, dy, f.glu_slope, n);
        if (gated) math.multiply(f.glu_slope, f.linear, f.glu_slope, n);
        store_block(math, f.glu_slope, args.dgate, from, n);
      }
    });
  });
}

}  // namespace hone::cpu
