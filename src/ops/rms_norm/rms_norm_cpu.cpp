#include <algorithm>
#include <cmath>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/chunk_sums.h"
#include "ops/rms_norm/rms_norm.h"

namespace hone::cpu {

namespace {

/// Rows whose gradients of w a task sums, independent of the number of threads.
constexpr int64_t kRowsPerChunk = 64;

/// Elements [begin, begin + n) of the factor of rows.
const float* load_weight(const RowMath& math, const Tensor& w, NormWeighting weighting, int64_t begin, float* buffer,
                         int64_t n) {
  const float* values = load_block(math, w, begin, buffer, n);
  if (weighting != NormWeighting::kFromOne) return values;
  for (int64_t i = 0; i < n; ++i) buffer[i] = 1.0f + values[i];
  return buffer;
}

bool rounds_first(const Tensor& x, NormWeighting weighting) {
  return x.dtype == DType::kBF16 && weighting == NormWeighting::kPlain;
}

float inverse_rms(const RowMath& math, const Tensor& x, int64_t row, float eps) {
  const int64_t hidden = x.shape[1];
  float squares = 0;
  for_row_blocks(hidden, [&](int64_t begin, int64_t n) {
    float buffer[kRowBlock];
    const float* values = load_block(math, x, row * hidden + begin, buffer, n);
    squares += math.dot(values, values, n);
  });
  return 1.0f / std::sqrt(squares / static_cast<float>(hidden) + eps);
}

/// sum = x + delta_scale · delta for one row.
void add_row(const RowMath& math, const RmsNormArgs& args, int64_t row) {
  const int64_t hidden = args.x.shape[1];
  for_row_blocks(hidden, [&](int64_t begin, int64_t n) {
    float x[kRowBlock], delta[kRowBlock], sum[kRowBlock];
    const int64_t at = row * hidden + begin;
    const float* term = load_block(math, args.delta, at, delta, n);
    if (args.delta_scale != 1.0f) {
      math.scale(args.delta_scale, term, delta, n);
      if (args.delta.dtype == DType::kBF16) math.round(delta, n);
      term = delta;
    }
    math.add(load_block(math, args.x, at, x, n), term, sum, n);
    store_block(math, sum, args.sum, at, n);
  });
}

void normalise_row(const RowMath& math, const RmsNormArgs& args, int64_t row) {
  const Tensor& x = args.delta.defined() ? args.sum : args.x;
  const int64_t hidden = x.shape[1];
  const float r = inverse_rms(math, x, row, args.eps);
  for_row_blocks(hidden, [&](int64_t begin, int64_t n) {
    float buffer[kRowBlock], y[kRowBlock];
    math.scale(r, load_block(math, x, row * hidden + begin, buffer, n), y, n);
    if (rounds_first(x, args.weighting)) math.round(y, n);
    if (args.w.defined()) math.multiply(y, load_weight(math, args.w, args.weighting, begin, buffer, n), y, n);
    store_block(math, y, args.y, row * hidden + begin, n);
  });
}

/// A block of g = dy · w and of n = x · r.
struct GradBlock {
  float g[kRowBlock], normalised[kRowBlock], dy_buffer[kRowBlock];
  const float* dy;

  GradBlock(const RowMath& math, const RmsNormGradArgs& args, int64_t row, float r, int64_t begin, int64_t n) {
    const int64_t at = row * args.x.shape[1] + begin;
    dy = load_block(math, args.dy, at, dy_buffer, n);
    if (args.w.defined()) {
      math.multiply(dy, load_weight(math, args.w, args.weighting, begin, g, n), g, n);
    } else {
      std::copy_n(dy, n, g);
    }
    math.scale(r, load_block(math, args.x, at, normalised, n), normalised, n);
  }
};

/// Gradients of one row; dw is added to dw_sums unless null.
void differentiate_row(const RowMath& math, const RmsNormGradArgs& args, int64_t row, float* dw_sums) {
  const int64_t hidden = args.x.shape[1];
  const float r = inverse_rms(math, args.x, row, args.eps);
  float projection = 0;
  for_row_blocks(hidden, [&](int64_t begin, int64_t n) {
    GradBlock block(math, args, row, r, begin, n);
    projection += math.dot(block.g, block.normalised, n);
    if (dw_sums != nullptr) {
      if (rounds_first(args.x, args.weighting)) math.round(block.normalised, n);
      math.multiply(block.dy, block.normalised, block.normalised, n);
      math.add_scaled(1.0f, block.normalised, dw_sums + begin, n);
    }
  });
  if (!args.dx.wanted()) return;
  const float mean = projection / static_cast<float>(hidden);
  for_row_blocks(hidden, [&](int64_t begin, int64_t n) {
    GradBlock block(math, args, row, r, begin, n);
    math.add_scaled(-mean, block.normalised, block.g, n);
    math.scale(r, block.g, block.g, n);
    store_block(math, block.g, args.dx, row * hidden + begin, n);
  });
}

}  // namespace

void rms_norm(const Context& context, const RmsNormArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    pool.parallel_ranges(args.x.shape[0], 8, [&](int64_t row, int64_t end) {
      for (; row < end; ++row) {
        if (args.delta.defined()) add_row(math, args, row);
        normalise_row(math, args, row);
      }
    });
  });
}

void rms_norm_grad(const Context& context, const RmsNormGradArgs& args) {
  const int64_t rows = args.x.shape[0], hidden = args.x.shape[1];
  const int64_t chunks = (rows + kRowsPerChunk - 1) / kRowsPerChunk;
  ArenaScope scratch(context.scratch());
  Tensor partial;
  if (args.dw.wanted()) partial = scratch.take({chunks, hidden}, DType::kF32);
  context.launch([args, rows, partial](ThreadPool& pool) {
    const RowMath& math = row_math();
    add_rows_by_chunk(pool, rows, kRowsPerChunk, partial,
                      [&](int64_t row, float* dw_sums) { differentiate_row(math, args, row, dw_sums); });
    if (partial.defined()) sum_chunks(pool, partial, args.dw);
  });
}

}  // namespace hone::cpu
