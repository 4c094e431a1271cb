#include "ops/linear/linear.h"

#include <algorithm>
#include <optional>

#include "kernels/cuda/low_rank/low_rank_cuda.h"
#include "kernels/cuda/low_rank/partial_sums_cuda.h"
#include "kernels/cuda/matmul/matmul_cuda.h"
#include "ops/add/add.h"
#include "ops/cast/cast.h"
#include "ops/linear/fp8_base.h"

namespace hone::cuda {

namespace {

/// Calls step(begin, count) for parts of the rows that still fill a GPU with tiles many times, so that scratch memory
/// does not grow with the number of tokens.
template <class Step>
void for_parts_of_rows(int64_t rows, const Step& step) {
  constexpr int64_t kMostRows = 16384, kTileRows = 128;
  const int64_t parts = std::max<int64_t>(1, (rows + kMostRows - 1) / kMostRows);
  const int64_t each = (rows + parts * kTileRows - 1) / (parts * kTileRows) * kTileRows;
  for (int64_t begin = 0; begin < rows; begin += each) step(begin, std::min(each, rows - begin));
}

LoraDropout rows_of(LoraDropout dropout, int64_t begin, int64_t count) {
  if (dropout.probability <= 0.0f) return dropout;
  dropout.rows.sample_ids = dropout.rows.sample_ids.rows(begin, count);
  dropout.rows.positions = dropout.rows.positions.rows(begin, count);
  return dropout;
}

/// The base products of a linear: by matmul(), or in 8-bit floats.
class BaseProduct {
 public:
  BaseProduct(const Context& context, Fp8Recipe recipe, const WeightView& w, bool for_dx) {
    if (recipe != Fp8Recipe::kOff) fp8_.emplace(context, recipe, w, for_dx);
  }

  bool fp8() const { return fp8_.has_value(); }

  /// What matmul() does with the same arguments; it alone reads base.b.
  void operator()(const Context& context, const MatmulArgs& base) const {
    if (!fp8_) return matmul(context, base);
    ArenaScope scratch(context.scratch());
    const int64_t rows = base.a.shape[0], padded = fp8_->padded_rows(rows);
    const Fp8Operand a = fp8_->round(context, scratch, base.a);
    Tensor bias = base.bias;
    if (bias.defined() && bias.dtype != base.c.dtype) {
      bias = scratch.take(bias.shape, base.c.dtype);
      cast(context, base.bias, bias);
    }
    Fp8MatmulArgs args{.recipe = fp8_->recipe(),
                       .a = a.codes,
                       .a_scales = a.scales,
                       .a_code = a.code,
                       .b = fp8_->operand().codes,
                       .b_scales = fp8_->operand().scales,
                       .fast = !fp8_->for_dx() && fp8_->recipe() != Fp8Recipe::kBlockwise,
                       .c = base.c,
                       .beta = base.beta,
                       .d = base.d,
                       .bias = bias};
    if (padded == rows) return fp8_matmul(context, args);
    args.c = scratch.take({padded, base.c.shape[1]}, base.c.dtype);
    args.d = {};
    if (base.beta != 0.0f) copy(context, base.d.defined() ? base.d : base.c, args.c.rows(0, rows));
    fp8_matmul(context, args);
    copy(context, args.c.rows(0, rows), base.c);
  }

 private:
  std::optional<Fp8Base> fp8_;
};

/// base.c = the base product + the adapter's + beta · base.c, rounded once where base.c is bfloat16; beta must be 0
/// there. The adapter's product goes first, and the base product adds it where it stores its results: that saves a pass
/// over them. cuBLASLt rounds once only where it adds other memory (matmul_cuda.h).
void add_products(const Context& context, const BaseProduct& product, MatmulArgs base, LowRankWidenArgs adapter,
                  float beta) {
  ArenaScope scratch(context.scratch());
  const bool rounds = base.c.dtype == DType::kBF16;
  HONE_ASSERT(!rounds || beta == 0.0f);
  adapter.wide = {rounds ? scratch.take(base.c.shape, base.c.dtype) : base.c, beta};
  low_rank_widen(context, adapter);
  base.beta = 1.0f;
  base.d = adapter.wide.dst;
  product(context, base);
}

}  // namespace

void linear(const Context& context, const LinearArgs& args) {
  const MatmulArgs base{
      .a = args.x, .b = args.w.payload, .b_transposed = true, .c = args.y, .operands = args.x.dtype, .bias = args.bias};
  const BaseProduct product(context, args.fp8, args.w, false);
  if (!args.xa.defined() && !product.fp8()) return product(context, base);
  for_parts_of_rows(args.x.shape[0], [&](int64_t begin, int64_t count) {
    MatmulArgs part = base;
    part.a = args.x.rows(begin, count);
    part.c = args.y.rows(begin, count);
    if (!args.xa.defined()) return product(context, part);
    add_products(context, product, part,
                 {.thin = args.xa.rows(begin, count),
                  .factor = args.lora_b,
                  .factor_transposed = true,
                  .alpha = args.scaling,
                  .wide = {}},
                 0.0f);
  });
}

namespace {

/// Columns [begin, begin + count) of a matrix, for arguments that state its pitch.
Tensor columns_of(const Tensor& matrix, int64_t begin, int64_t count) {
  Tensor columns = matrix;
  columns.data += begin * static_cast<int64_t>(size_of(matrix.dtype));
  columns.shape = {matrix.shape[0], count};
  return columns;
}

/// dx += [dy | dxa] · [W; A] in bfloat16. A part of the adapter alone that is added to numbers of bfloat16 is rounded
/// away; so its terms are further steps along k of the base product, whose factors are copied for that.
void add_joined_product(const Context& context, const Tensor& dy, const Tensor& w, const Tensor& dxa,
                        const Tensor& lora_a, const Tensor& dx) {
  const int64_t tokens = dy.shape[0], out = dy.shape[1], rank = dxa.shape[1], in = dx.shape[1];
  ArenaScope scratch(context.scratch());
  const int64_t pitch = aligned_pitch(out + rank, DType::kBF16);
  const Tensor left = scratch.take({tokens, pitch}, DType::kBF16), right = scratch.take({out + rank, in}, DType::kBF16);
  copy_matrix(context, dy, out, columns_of(left, 0, out), pitch);
  copy_matrix(context, dxa, rank, columns_of(left, out, rank), pitch);
  copy_matrix(context, w, in, right.rows(0, out), in);
  copy_matrix(context, lora_a, in, right.rows(out, rank), in);
  matmul(context, {.a = columns_of(left, 0, out + rank),
                   .b = right,
                   .c = dx,
                   .operands = DType::kBF16,
                   .beta = 1.0f,
                   .a_pitch = pitch});
}

/// dx = dy W + the adapter's part + beta · dx.
void input_grad(const Context& context, const LinearGradArgs& args) {
  const Tensor &dx = args.dx.dst, &w = args.w.payload;
  const bool adds = args.dx.beta != 0.0f && dx.dtype == DType::kBF16, drops = args.dropout.probability > 0.0f;
  const BaseProduct product(context, args.fp8.recipe, args.w, true);
  if (!args.lora_a.defined() && !product.fp8()) {
    return product(context, {.a = args.dy, .b = w, .c = dx, .operands = args.dy.dtype, .beta = args.dx.beta});
  }
  for_parts_of_rows(dx.shape[0], [&](int64_t begin, int64_t count) {
    const Tensor dy = args.dy.rows(begin, count), sum = dx.rows(begin, count);
    const MatmulArgs base{.a = dy, .b = w, .c = sum, .operands = dy.dtype, .beta = args.dx.beta};
    if (!args.lora_a.defined()) return product(context, base);
    const Tensor dxa = args.dxa.dst.rows(begin, count);
    if (adds && !drops && !product.fp8()) return add_joined_product(context, dy, w, dxa, args.lora_a, sum);
    ArenaScope scratch(context.scratch());
    const Tensor products = adds ? scratch.take(sum.shape, sum.dtype) : sum;
    add_products(context, product, {.a = dy, .b = w, .c = products, .operands = dy.dtype},
                 {.thin = dxa,
                  .factor = args.lora_a,
                  .dropout = rows_of(args.dropout, begin, count),
                  .alpha = lora_keep_scale(args.dropout.probability),
                  .wide = {}},
                 adds ? 0.0f : args.dx.beta);
    if (adds) hone::add(context, {.a = products, .b = {}, .y = sum, .beta = 1.0f});
  });
}

/// dw = dyᵀ x + beta · dw.
void weight_grad(const Context& context, const LinearGradArgs& args) {
  const GradDest& dw = args.dw;
  const int64_t tokens = args.dy.shape[0];
  if (!args.fp8.weight_gradient || args.fp8.recipe == Fp8Recipe::kOff || tokens == 0) {
    return matmul(
        context,
        {.a = args.dy, .a_transposed = true, .b = args.x, .c = dw.dst, .operands = args.dy.dtype, .beta = dw.beta});
  }
  const auto add_part = [&](int64_t begin, int64_t count) {
    ArenaScope scratch(context.scratch());
    const Fp8WeightGradient operands(context, scratch, args.fp8.recipe, args.dy.rows(begin, count),
                                     args.x.rows(begin, count));
    fp8_matmul(context, {.recipe = args.fp8.recipe,
                         .a = operands.dy.codes,
                         .a_scales = operands.dy.scales,
                         .a_code = operands.dy.code,
                         .b = operands.x.codes,
                         .b_scales = operands.x.scales,
                         .b_of_rows = true,
                         .c = dw.dst,
                         .beta = begin == 0 ? dw.beta : 1.0f});
  };
  // A bfloat16 dw is rounded once, so it takes all tokens at once.
  if (dw.dst.dtype == DType::kBF16) return add_part(0, tokens);
  for_parts_of_rows(tokens, add_part);
}

}  // namespace

void linear_grad(const Context& context, const LinearGradArgs& args) {
  if (args.dxa.wanted()) {
    low_rank_narrow(
        context,
        {.wide = args.dy, .factor = args.lora_b, .factor_transposed = true, .alpha = args.scaling, .thin = args.dxa});
  }
  if (args.dx.wanted()) input_grad(context, args);
  if (args.dw.wanted()) weight_grad(context, args);
  if (args.dbias.wanted()) sum_over_rows(context, args.dy, args.dbias);
  if (args.dlora_b.wanted()) {
    low_rank_factor(
        context,
        {.thin = args.xa, .wide = args.dy, .alpha = args.scaling, .factor = args.dlora_b, .factor_transposed = true});
  }
}

void lora_down(const Context& context, const LoraDownArgs& args) {
  low_rank_narrow(context, {.wide = args.x,
                            .factor = args.lora_a,
                            .dropout = args.dropout,
                            .alpha = lora_keep_scale(args.dropout.probability),
                            .thin = {args.xa, 0.0f}});
}

void lora_down_grad(const Context& context, const LoraDownGradArgs& args) {
  const float scale = lora_keep_scale(args.dropout.probability);
  if (args.dx.wanted()) {
    low_rank_widen(context,
                   {.thin = args.dxa, .factor = args.lora_a, .dropout = args.dropout, .alpha = scale, .wide = args.dx});
  }
  if (args.dlora_a.wanted()) {
    low_rank_factor(
        context, {.thin = args.dxa, .wide = args.x, .dropout = args.dropout, .alpha = scale, .factor = args.dlora_a});
  }
}

}  // namespace hone::cuda
