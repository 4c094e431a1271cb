#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/row_math/packed_rows.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "kernels/cpu/tile_products/tile_linear.h"
#include "ops/linear/linear_fp8_cpu.h"
#include "ops/linear/lora_down_cpu.h"

namespace hone::cpu {

namespace {

/// Rows of a packed weight that are unpacked together, and memory for those of all threads: at most the weight's.
class WeightPanels {
 public:
  WeightPanels(ArenaScope& scratch, const WeightView& w, int threads)
      : rows_(w.payload.shape[0]), columns_(w.payload.shape[1]), packed_(*w.packed) {
    const int64_t of_cache = kBytes / (columns_ * static_cast<int64_t>(size_of(packed_.dtype)));
    height_ = std::min(std::max(of_cache / kUnit, int64_t{1}) * kUnit, rows_);
    shared_ = count() > threads;
    memory_ = scratch.take({std::min(rows_, threads * height_), columns_}, packed_.dtype);
  }

  int64_t count() const { return (rows_ + height_ - 1) / height_; }
  int64_t first_row(int64_t panel) const { return panel * height_; }
  /// A panel in memory that the thread writes over with its next one.
  Tensor unpacked(int64_t panel, int thread) const {
    const int64_t first = first_row(panel), height = std::min(height_, rows_ - first);
    const int64_t place = shared_ ? thread * height_ : first;
    const Tensor rows = memory_.rows(place, height);
    unpack_elements(packed_.layout, packed_.chunks.data, first * columns_, height * columns_, rows, 0);
    return rows;
  }

 private:
  static constexpr int64_t kBytes = 128 << 10;  // a part of L2
  static constexpr int64_t kUnit = 32;          // columns that products compute together

  int64_t rows_, columns_, height_ = 0;
  PackedWeight packed_;
  bool shared_ = false;  // among a thread's panels
  Tensor memory_;
};

/// The products of a launch, whose activations (or their gradients) have one dtype.
struct Products {
  ThreadPool& pool;
  DType dtype;

  GemmArgs arguments(const MatrixView& a, const MatrixView& b, int64_t k, const GradDest& c, float alpha,
                     const ProductTerms& terms) const {
    return {.m = c.dst.shape[0],
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
            .may_round = dtype == DType::kBF16};
  }

  /// c = alpha · a b + bias + beta · c + addend, the shape of c given by its tensor; rounded once.
  void operator()(const MatrixView& a, const MatrixView& b, int64_t k, const GradDest& c, float alpha = 1.0f,
                  const ProductTerms& terms = {}) const {
    gemm(pool, arguments(a, b, k, c, alpha, terms));
  }

  /// c = x Wᵀ + bias + beta · c
  void multiply_transposed(const Tensor& x, const WeightView& w, const Tensor& bias, const GradDest& c) const {
    if (!w.is_dense()) return tile_linear(pool, x, w.payload, true, {.bias = bias}, c);
    (*this)(matrix(x), transposed(matrix(w.payload)), x.shape[1], c, 1.0f, {.bias = bias});
  }
  /// The same, a panel of W at a time.
  void multiply_transposed(const Tensor& x, const WeightPanels& panels, const Tensor& bias, const GradDest& c) const {
    const GemmArgs all = arguments(matrix(x), {}, x.shape[1], c, 1.0f, {.bias = bias});
    const auto size = static_cast<int64_t>(size_of(c.dst.dtype));
    pool.parallel_for(panels.count(), [&](int64_t i, int thread) {
      const Tensor w = panels.unpacked(i, thread);
      const int64_t first = panels.first_row(i);
      GemmArgs part = all;
      part.n = w.shape[0];
      part.b = transposed(matrix(w));
      part.c = c.dst.data + first * size;
      if (bias.defined()) part.bias = bias.data + first * size;
      gemm_serial(part);
    });
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
  const auto panels =
      args.w.packed ? std::optional<WeightPanels>(std::in_place, scratch, args.w, context.threads()) : std::nullopt;
  context.launch([args, bias, converts, panels](ThreadPool& pool) {
    if (converts) convert_elements(pool, args.bias, bias);
    const Products product{pool, args.x.dtype};
    // The adapter's product goes first: in bfloat16 it is rounded by its own size, not by that of y.
    const bool adapted = args.xa.defined();
    if (adapted) {
      product(matrix(args.xa), transposed(matrix(args.lora_b)), args.xa.shape[1], {args.y, 0.0f}, args.scaling);
    }
    const GradDest y{args.y, adapted ? 1.0f : 0.0f};
    if (panels) return product.multiply_transposed(args.x, *panels, bias, y);
    product.multiply_transposed(args.x, args.w, bias, y);
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
