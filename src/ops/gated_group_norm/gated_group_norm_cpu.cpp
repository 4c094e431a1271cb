// A group may be longer than a block of float32 values that stays in L1: a first pass over its blocks takes the sums, a
// second one computes h again and writes.
#include <cmath>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/chunk_sums.h"
#include "ops/gated_group_norm/gated_group_norm.h"

namespace hone::cpu {

namespace {

/// Rows whose gradients of w a task sums, independent of the number of threads.
constexpr int64_t kRowsPerChunk = 64;

/// A block of h, and what its gradients need.
struct Gated {
  float x_buffer[kRowBlock], h[kRowBlock], gate[kRowBlock], slope[kRowBlock];
  const float* x;

  void load(const RowMath& math, const GatedGroupNormArgs& args, int64_t at, int64_t n) {
    x = load_block(math, args.x, at, x_buffer, n);
    math.silu_and_slope(load_block(math, args.z, at, h, n), gate, slope, n);
    math.multiply(x, gate, h, n);
  }
};

/// to = round(h · r)
void normalise(const RowMath& math, DType dtype, const float* h, float r, float* to, int64_t n) {
  math.scale(r, h, to, n);
  if (dtype == DType::kBF16) math.round(to, n);
}

void normalise_group(const RowMath& math, const GatedGroupNormArgs& args, int64_t row, int64_t group) {
  const int64_t width = args.w.numel(), dim = width / args.groups, first = group * dim;
  Gated gated;
  float squares = 0, w_buffer[kRowBlock], y[kRowBlock];
  for_row_blocks(dim, [&](int64_t begin, int64_t n) {
    gated.load(math, args, row * width + first + begin, n);
    squares += math.dot(gated.h, gated.h, n);
  });
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(dim) + args.eps);
  for_row_blocks(dim, [&](int64_t begin, int64_t n) {
    const int64_t at = row * width + first + begin;
    if (dim > kRowBlock) gated.load(math, args, at, n);
    normalise(math, args.x.dtype, gated.h, r, y, n);
    math.multiply(y, load_block(math, args.w, first + begin, w_buffer, n), y, n);
    store_block(math, static_cast<const float*>(y), args.y, at, n);
  });
}

/// Gradients of a group of a row; dw is added to dw_sums [groups · D] unless null.
void differentiate(const RowMath& math, const GatedGroupNormGradArgs& args, int64_t row, int64_t group,
                   float* dw_sums) {
  const GatedGroupNormArgs& forward = args.forward;
  const int64_t width = forward.w.numel(), dim = width / forward.groups, first = group * dim;
  Gated gated;
  float squares = 0, along = 0, w_buffer[kRowBlock], dy_buffer[kRowBlock], g[kRowBlock], buffer[kRowBlock];
  const float* dy = nullptr;
  const auto load = [&](int64_t begin, int64_t n) {
    const int64_t at = row * width + first + begin;
    gated.load(math, forward, at, n);
    dy = load_block(math, args.dy, at, dy_buffer, n);
    math.multiply(dy, load_block(math, forward.w, first + begin, w_buffer, n), g, n);
  };
  for_row_blocks(dim, [&](int64_t begin, int64_t n) {
    load(begin, n);
    squares += math.dot(gated.h, gated.h, n);
    along += math.dot(g, gated.h, n);
  });
  const float size = static_cast<float>(dim), r = 1.0f / std::sqrt(squares / size + forward.eps);
  for_row_blocks(dim, [&](int64_t begin, int64_t n) {
    const int64_t at = row * width + first + begin;
    if (dim > kRowBlock) load(begin, n);
    if (dw_sums != nullptr) {
      normalise(math, forward.x.dtype, gated.h, r, buffer, n);
      math.multiply(buffer, dy, buffer, n);
      math.add(dw_sums + first + begin, buffer, dw_sums + first + begin, n);
    }
    math.add_scaled(-r * r * along / size, gated.h, g, n);
    math.scale(r, g, g, n);  // dh
    if (args.dz.wanted()) {
      math.multiply(g, gated.x, buffer, n);
      math.multiply(buffer, gated.slope, buffer, n);
      store_block(math, buffer, args.dz, at, n);
    }
    if (!args.dx.wanted()) return;
    math.multiply(g, gated.gate, g, n);
    store_block(math, g, args.dx, at, n);
  });
}

}  // namespace

void gated_group_norm(const Context& context, const GatedGroupNormArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    pool.parallel_ranges(args.x.shape[0], kRowsPerChunk / 4, [&](int64_t row, int64_t end) {
      for (; row < end; ++row) {
        for (int64_t group = 0; group < args.groups; ++group) normalise_group(math, args, row, group);
      }
    });
  });
}

void gated_group_norm_grad(const Context& context, const GatedGroupNormGradArgs& args) {
  const int64_t width = args.forward.w.numel(), rows = args.dy.shape[0];
  const int64_t chunks = (rows + kRowsPerChunk - 1) / kRowsPerChunk;
  ArenaScope scratch(context.scratch());
  Tensor partial;
  if (args.dw.wanted()) partial = scratch.take({chunks, width}, DType::kF32);
  context.launch([args, rows, partial](ThreadPool& pool) {
    const RowMath& math = row_math();
    add_rows_by_chunk(pool, rows, kRowsPerChunk, partial, [&](int64_t row, float* dw_sums) {
      for (int64_t group = 0; group < args.forward.groups; ++group) differentiate(math, args, row, group, dw_sums);
    });
    if (partial.defined()) sum_chunks(pool, partial, args.dw);
  });
}

}  // namespace hone::cpu
