#include "ops/linear/fp8_base.h"

namespace hone {

namespace {

/// One scale for all gradients of a micro-batch needs the wider range.
Fp8Code code_of_gradients(Fp8Recipe recipe) {
  return recipe == Fp8Recipe::kTensorwise ? Fp8Code::kE5m2 : Fp8Code::kE4m3;
}

Fp8Operand quantised_columns(const Context& context, ArenaScope& scratch, Fp8Recipe recipe, const Tensor& x,
                             Fp8Code code) {
  const int64_t tokens = (x.shape[0] + kFp8Unit - 1) / kFp8Unit * kFp8Unit;
  const Fp8Operand columns = take_fp8_rows(scratch, recipe, x.shape[1], tokens, code);
  fp8_columns(context, {.recipe = recipe, .x = x, .to = columns});
  return columns;
}

}  // namespace

Fp8Base::Fp8Base(const Context& context, Fp8Recipe recipe, const WeightView& w, bool for_dx)
    : scope_(context.scratch()), recipe_(recipe), for_dx_(for_dx) {
  const std::optional<Fp8Operand> in_place = for_dx ? std::nullopt : fp8_weight_in_place(recipe, w);
  if (in_place) {
    operand_ = *in_place;
    return;
  }
  const Shape& shape = w.payload.shape;
  operand_ = take_fp8_weight(scope_, recipe, shape, for_dx);
  if (for_dx && recipe == Fp8Recipe::kRowwise) factors_ = scope_.take({shape[0]}, DType::kF32);
  fp8_weight(context, {.recipe = recipe, .w = w, .transposed = for_dx, .to = operand_, .factors = factors_});
}

Fp8Operand Fp8Base::round(const Context& context, ArenaScope& scratch, const Tensor& x) const {
  const Fp8Code code = for_dx_ ? code_of_gradients(recipe_) : Fp8Code::kE4m3;
  const Fp8Operand rows = take_fp8_rows(scratch, recipe_, padded_rows(x.shape[0]), x.shape[1], code);
  fp8_rows(context, {.recipe = recipe_, .x = x, .factors = factors_, .to = rows});
  return rows;
}

Fp8WeightGradient::Fp8WeightGradient(const Context& context, ArenaScope& scratch, Fp8Recipe recipe,
                                     const Tensor& dy_rows, const Tensor& x_rows)
    : dy(quantised_columns(context, scratch, recipe, dy_rows, code_of_gradients(recipe))),
      x(quantised_columns(context, scratch, recipe, x_rows, Fp8Code::kE4m3)) {}

}  // namespace hone
