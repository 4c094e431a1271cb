#include "core/thread_pool.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "kernels/cpu/tile_products/tile_linear.h"
#include "ops/linear/linear.h"

namespace hone::cpu {

namespace {

/// The products of a launch, whose activations (or their gradients) have one dtype.
struct Products {
  ThreadPool& pool;
  DType dtype;

  /// c = alpha · a b + beta · c, the shape of c given by its tensor.
  void operator()(const MatrixView& a, const MatrixView& b, int64_t k, const Tensor& c, float alpha = 1.0f,
                  float beta = 0.0f) const {
    gemm(pool, {.m = c.shape[0],
                .n = c.shape[1],
                .k = k,
                .a = a,
                .b = b,
                .c = c.data,
                .c_dtype = c.dtype,
                .ldc = c.shape[1],
                .alpha = alpha,
                .beta = beta,
                .may_round = dtype == DType::kBF16});
  }

  void operator()(const MatrixView& a, const MatrixView& b, int64_t k, const GradDest& c, float alpha = 1.0f) const {
    (*this)(a, b, k, c.dst, alpha, c.beta);
  }

  /// c = x Wᵀ + beta · c
  void multiply_transposed(const Tensor& x, const WeightView& w, const GradDest& c) const {
    if (!w.is_dense()) return tile_linear(pool, x, w.payload, true, c);
    (*this)(matrix(x), transposed(matrix(w.payload)), x.shape[1], c);
  }
  /// c = dy W + beta · c
  void multiply(const Tensor& dy, const WeightView& w, const GradDest& c) const {
    if (!w.is_dense()) return tile_linear(pool, dy, w.payload, false, c);
    (*this)(matrix(dy), matrix(w.payload), dy.shape[1], c);
  }
};

/// y[t, :] = bias.
void broadcast(ThreadPool& pool, const Tensor& bias, const Tensor& y) {
  const RowMath& math = row_math();
  const int64_t out = y.shape[1];
  pool.parallel_ranges(y.shape[0], 16, [&](int64_t row, int64_t end) {
    for (; row < end; ++row) {
      for_row_blocks(out, [&](int64_t begin, int64_t n) {
        float buffer[kRowBlock];
        store_block(math, load_block(math, bias, begin, buffer, n), y, row * out + begin, n);
      });
    }
  });
}

}  // namespace

void linear(const Context& context, const LinearArgs& args) {
  context.launch([args](ThreadPool& pool) {
    // The bias goes first, so that a bfloat16 y is rounded once for both.
    if (args.bias.defined()) broadcast(pool, args.bias, args.y);
    const Products product{pool, args.x.dtype};
    product.multiply_transposed(args.x, args.w, {args.y, args.bias.defined() ? 1.0f : 0.0f});
    if (args.xa.defined()) {
      product(matrix(args.xa), transposed(matrix(args.lora_b)), args.xa.shape[1], args.y, args.scaling, 1.0f);
    }
  });
}

void linear_grad(const Context& context, const LinearGradArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const Products product{pool, args.dy.dtype};
    const MatrixView dy = matrix(args.dy);
    const int64_t rows = args.dy.shape[0], out = args.dy.shape[1];
    if (args.dx.wanted()) product.multiply(args.dy, args.w, args.dx);
    if (args.dw.wanted()) product(transposed(dy), matrix(args.x), rows, args.dw);
    if (args.dbias.wanted()) sum_over_rows(pool, args.dy, args.dbias);
    if (args.dxa.wanted()) product(dy, matrix(args.lora_b), out, args.dxa, args.scaling);
    if (args.dlora_b.wanted()) product(transposed(dy), matrix(args.xa), rows, args.dlora_b, args.scaling);
  });
}

}  // namespace hone::cpu
