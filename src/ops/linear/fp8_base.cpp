#include "ops/linear/fp8_base.h"

namespace hone {

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
  const bool wide = for_dx_ && recipe_ == Fp8Recipe::kTensorwise;
  const Fp8Operand rows =
      take_fp8_rows(scratch, recipe_, padded_rows(x.shape[0]), x.shape[1], wide ? Fp8Code::kE5m2 : Fp8Code::kE4m3);
  fp8_rows(context, {.recipe = recipe_, .x = x, .factors = factors_, .to = rows});
  return rows;
}

}  // namespace hone
