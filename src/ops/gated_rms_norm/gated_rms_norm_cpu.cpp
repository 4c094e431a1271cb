#include <cmath>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/chunk_sums.h"
#include "ops/gated_rms_norm/gated_rms_norm.h"

namespace hone::cpu {

namespace {

/// Rows whose gradients of w a task sums, independent of the number of threads.
constexpr int64_t kRowsPerChunk = 256;

static_assert(kMaxGatedNorm <= kRowBlock);

/// A row and the intermediate results of both passes.
struct GatedRow {
  float n[kRowBlock];  // x · r
  float t[kRowBlock];  // round(w · round(n))
  float r;

  GatedRow(const RowMath& math, const Tensor& x, const float* w, float eps, int64_t row, int64_t dim) {
    float buffer[kRowBlock];
    const float* values = load_block(math, x, row * dim, buffer, dim);
    r = 1.0f / std::sqrt(math.dot(values, values, dim) / static_cast<float>(dim) + eps);
    math.scale(r, values, n, dim);
    rounded_n(math, x.dtype, t, dim);
    math.multiply(t, w, t, dim);
    if (x.dtype == DType::kBF16) math.round(t, dim);
  }

  void rounded_n(const RowMath& math, DType dtype, float* to, int64_t dim) const {
    math.scale(1.0f, n, to, dim);
    if (dtype == DType::kBF16) math.round(to, dim);
  }
};

/// Gradients of one row; dw is added to dw_sums unless null.
void differentiate(const RowMath& math, const GatedRmsNormGradArgs& args, const float* w, int64_t row, float* dw_sums) {
  const int64_t dim = args.w.numel();
  const GatedRow forward(math, args.x, w, args.eps, row, dim);
  float buffer[kRowBlock], dy_buffer[kRowBlock], gate[kRowBlock], slope[kRowBlock], g[kRowBlock];
  const float* dy = load_block(math, args.dy, row * dim, dy_buffer, dim);
  math.silu_and_slope(load_block(math, args.z, row * dim, buffer, dim), gate, slope, dim);
  if (args.dz.wanted()) {
    math.multiply(slope, forward.t, slope, dim);
    math.multiply(slope, dy, slope, dim);
    store_block(math, slope, args.dz, row * dim, dim);
  }
  math.multiply(gate, dy, g, dim);  // dt
  if (dw_sums != nullptr) {
    forward.rounded_n(math, args.x.dtype, buffer, dim);
    math.multiply(buffer, g, buffer, dim);
    math.add(dw_sums, buffer, dw_sums, dim);
  }
  if (!args.dx.wanted()) return;
  math.multiply(g, w, g, dim);
  math.add_scaled(-math.dot(g, forward.n, dim) / static_cast<float>(dim), forward.n, g, dim);
  math.scale(forward.r, g, g, dim);
  store_block(math, g, args.dx, row * dim, dim);
}

}  // namespace

void gated_rms_norm(const Context& context, const GatedRmsNormArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    const int64_t dim = args.w.numel();
    float w_buffer[kRowBlock];
    const float* w = load_block(math, args.w, 0, w_buffer, dim);
    pool.parallel_ranges(args.x.numel() / dim, kRowsPerChunk, [&](int64_t row, int64_t end) {
      for (; row < end; ++row) {
        GatedRow forward(math, args.x, w, args.eps, row, dim);
        float buffer[kRowBlock], gate[kRowBlock];
        math.silu(load_block(math, args.z, row * dim, buffer, dim), gate, dim);
        math.multiply(forward.t, gate, gate, dim);
        store_block(math, static_cast<const float*>(gate), args.y, row * dim, dim);
      }
    });
  });
}

void gated_rms_norm_grad(const Context& context, const GatedRmsNormGradArgs& args) {
  const int64_t dim = args.w.numel(), rows = args.x.numel() / dim;
  const int64_t chunks = (rows + kRowsPerChunk - 1) / kRowsPerChunk;
  ArenaScope scratch(context.scratch());
  Tensor partial;
  if (args.dw.wanted()) partial = scratch.take({chunks, dim}, DType::kF32);
  context.launch([args, rows, dim, partial](ThreadPool& pool) {
    const RowMath& math = row_math();
    float w_buffer[kRowBlock];
    const float* w = load_block(math, args.w, 0, w_buffer, dim);
    add_rows_by_chunk(pool, rows, kRowsPerChunk, partial,
                      [&](int64_t row, float* dw_sums) { differentiate(math, args, w, row, dw_sums); });
    if (partial.defined()) sum_chunks(pool, partial, args.dw);
  });
}

}  // namespace hone::cpu
