#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "kernels/cpu/tile_products/tile_linear.h"
#include "ops/linear/linear_fp8_cpu.h"
#include "ops/linear/lora_down_cpu.h"

namespace hone::cpu {

namespace {

/// The products of a launch, whose activations (or their gradients) have one dtype.
struct Products {
  ThreadPool& pool;
  DType dtype;

  /// c = alpha · a b + bias + beta · c + addend, the shape of c given by its tensor; rounded once.
  void operator()(const MatrixView& a, const MatrixView& b, int64_t k, const GradDest& c, float alpha = 1.0f,
                  const ProductTerms& terms = {}) const {
    gemm(pool, {.m = c.dst.shape[0],
                .n = c.dst.shape[1],
                .k = k,
                .a = a,
                .b = b,
                .c = c.dst.data,
                .c_dtype = c.dst.dtype,
                .ldc = c.dst.shape[1],
                .alpha = alpha,
                .beta = c.beta,
                .bias = terms.bias.data,
                .addend = terms.addend.data,
                .may_round = dtype == DType::kBF16});
  }

  /// c = x Wᵀ + bias + beta · c
  void multiply_transposed(const Tensor& x, const WeightView& w, const Tensor& bias, const GradDest& c) const {
    if (!w.is_dense()) return tile_linear(pool, x, w.payload, true, {.bias = bias}, c);
    (*this)(matrix(x), transposed(matrix(w.payload)), x.shape[1], c, 1.0f, {.bias = bias});
  }
  /// c = dy W + beta · c + addend
  void multiply(const Tensor& dy, const WeightView& w, const Tensor& addend, const GradDest& c) const {
    if (!w.is_dense()) return tile_linear(pool, dy, w.payload, false, {.addend = addend}, c);
    (*this)(matrix(dy), matrix(w.payload), dy.shape[1], c, 1.0f, {.addend = addend});
  }
};

}  // namespace

void linear(const Context& context, const LinearArgs& args) {
  if (args.fp8 != Fp8Recipe::kOff) return linear_fp8(context, args);
  ArenaScope scratch(context.scratch());
  const bool converts = args.bias.defined() && args.bias.dtype != args.y.dtype;
  const Tensor bias = converts ? scratch.take(args.bias.shape, args.y.dtype) : args.bias;
  context.launch([args, bias, converts](ThreadPool& pool) {
    if (converts) convert_elements(pool, args.bias, bias);
    const Products product{pool, args.x.dtype};
    // The adapter's product goes first: in bfloat16 it is rounded by its own size, not by that of y.
    const bool adapted = args.xa.defined();
    if (adapted) {
      product(matrix(args.xa), transposed(matrix(args.lora_b)), args.xa.shape[1], {args.y, 0.0f}, args.scaling);
    }
    product.multiply_transposed(args.x, args.w, bias, {args.y, adapted ? 1.0f : 0.0f});
  });
}

namespace {

/// dx = dy W + the adapter's part + beta · dx.
class InputGradient {
 public:
  InputGradient(ArenaScope& scratch, const LinearGradArgs& args)
      : base_(args.dx), first_(args.dx.wanted() && args.lora_a.defined() && args.dx.dst.dtype == DType::kBF16) {
    adapter_ = {.dxa = args.dxa.dst, .lora_a = args.lora_a, .dropout = args.dropout, .dx = args.dx, .dlora_a = {}};
    if (first_ && args.dx.beta != 0.0f) {
      // Added to what is in dx, a small part would be rounded away before the base product.
      addend_ = scratch.take(args.dx.dst.shape, args.dx.dst.dtype);
      adapter_.dx = {addend_, 0.0f};
    } else if (first_) {
      base_.beta = 1.0f;
    } else {
      adapter_.dx.beta = 1.0f;
    }
    if (args.lora_a.defined()) scratch_ = lora_dx_scratch(scratch, adapter_);
  }

  void compute(const Products& product, const LinearGradArgs& args) const {
    if (first_) lora_dx(product.pool, adapter_, scratch_);
    product.multiply(args.dy, args.w, addend_, base_);
    if (!first_ && args.lora_a.defined()) lora_dx(product.pool, adapter_, scratch_);
  }

 private:
  LoraDownGradArgs adapter_;
  GradDest base_;
  bool first_;     // whether the adapter's part is computed before the base product, which adds it: in bfloat16
  Tensor addend_;  // the adapter's part, or undefined if it is in dx
  Tensor scratch_;
};

}  // namespace

void linear_grad(const Context& context, const LinearGradArgs& args) {
  if (args.fp8.recipe != Fp8Recipe::kOff) return linear_fp8_grad(context, args);
  ArenaScope scratch(context.scratch());
  const InputGradient dx(scratch, args);
  context.launch([args, dx](ThreadPool& pool) {
    const Products product{pool, args.dy.dtype};
    const MatrixView dy = matrix(args.dy);
    const int64_t rows = args.dy.shape[0], out = args.dy.shape[1];
    if (args.dxa.wanted()) product(dy, matrix(args.lora_b), out, args.dxa, args.scaling);
    if (args.dx.wanted()) dx.compute(product, args);
    if (args.dw.wanted()) product(transposed(dy), matrix(args.x), rows, args.dw);
    if (args.dbias.wanted()) sum_over_rows(pool, args.dy, args.dbias);
    if (args.dlora_b.wanted()) product(transposed(dy), matrix(args.xa), rows, args.dlora_b, args.scaling);
  });
}

}  // namespace hone::cpu
