#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/sigmoid_gate/sigmoid_gate.h"

namespace hone::cpu {

namespace {

bool one_gate_a_row(const Tensor& gate, const Tensor& x) { return gate.shape[1] != x.shape[1]; }

float rounded(const RowMath& math, float value, DType dtype) {
  if (dtype == DType::kBF16) math.round(&value, 1);
  return value;
}

/// Sigmoid of the gate of one row.
float row_sigmoid(const RowMath& math, const Tensor& gate, int64_t row) {
  float value, sigmoid;
  math.sigmoid(load_block(math, gate, row, &value, 1), &sigmoid, 1);
  return sigmoid;
}

void differentiate_row(const RowMath& math, const SigmoidGateGradArgs& args, int64_t row) {
  const int64_t columns = args.x.shape[1];
  const float s = row_sigmoid(math, args.gate, row), s_rounded = rounded(math, s, args.x.dtype);
  float dot = 0.0f;
  for_row_blocks(columns, [&](int64_t begin, int64_t n) {
    float x_buffer[kRowBlock], dy_buffer[kRowBlock], dx[kRowBlock];
    const int64_t at = row * columns + begin;
    const float* dy = load_block(math, args.dy, at, dy_buffer, n);
    dot += math.dot(dy, load_block(math, args.x, at, x_buffer, n), n);
    if (!args.dx.wanted()) return;
    math.scale(s_rounded, dy, dx, n);
    store_block(math, dx, args.dx, at, n);
  });
  float dgate = dot * s * (1.0f - s);
  if (args.dgate.wanted()) store_block(math, &dgate, args.dgate, row, 1);
}

void differentiate_block(const RowMath& math, const SigmoidGateGradArgs& args, int64_t begin, int64_t n) {
  float s[kRowBlock], dgate[kRowBlock], buffer[kRowBlock], dy_buffer[kRowBlock];
  math.sigmoid(load_block(math, args.gate, begin, buffer, n), s, n);
  const float* dy = load_block(math, args.dy, begin, dy_buffer, n);
  if (args.dgate.wanted()) {
    math.multiply(dy, load_block(math, args.x, begin, buffer, n), dgate, n);
    for (int64_t i = 0; i < n; ++i) dgate[i] *= s[i] * (1.0f - s[i]);
    store_block(math, dgate, args.dgate, begin, n);
  }
  if (!args.dx.wanted()) return;
  if (args.x.dtype == DType::kBF16) math.round(s, n);
  math.multiply(s, dy, s, n);
  store_block(math, s, args.dx, begin, n);
}

}  // namespace

void sigmoid_gate(const Context& context, const SigmoidGateArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    const int64_t columns = args.x.shape[1];
    if (!one_gate_a_row(args.gate, args.x)) {
      parallel_blocks(pool, args.x.numel(), [&](int64_t begin, int64_t n) {
        float buffer[kRowBlock], s[kRowBlock];
        math.sigmoid(load_block(math, args.gate, begin, buffer, n), s, n);
        if (args.x.dtype == DType::kBF16) math.round(s, n);
        math.multiply(s, load_block(math, args.x, begin, buffer, n), s, n);
        store_block(math, s, args.y, begin, n);
      });
      return;
    }
    pool.parallel_ranges(args.x.shape[0], 8, [&](int64_t row, int64_t end) {
      for (; row < end; ++row) {
        const float s = rounded(math, row_sigmoid(math, args.gate, row), args.x.dtype);
        for_row_blocks(columns, [&](int64_t begin, int64_t n) {
          float buffer[kRowBlock], y[kRowBlock];
          math.scale(s, load_block(math, args.x, row * columns + begin, buffer, n), y, n);
          store_block(math, y, args.y, row * columns + begin, n);
        });
      }
    });
  });
}

void sigmoid_gate_grad(const Context& context, const SigmoidGateGradArgs& args) {
  if (!args.dgate.wanted() && !args.dx.wanted()) return;
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    if (!one_gate_a_row(args.gate, args.x)) {
      parallel_blocks(pool, args.x.numel(),
                      [&](int64_t begin, int64_t n) { differentiate_block(math, args, begin, n); });
      return;
    }
    pool.parallel_ranges(args.x.shape[0], 8, [&](int64_t row, int64_t end) {
      for (; row < end; ++row) differentiate_row(math, args, row);
    });
  });
}

}  // namespace hone::cpu
