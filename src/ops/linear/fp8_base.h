// Fp8Base: the weight of a base product in 8-bit floats. Fp8WeightGradient: the operands of its gradient.
#pragma once

#include "ops/fp8_operand/fp8_operand.h"

namespace hone {

/// The weight [out, in] of a linear as an operand: [out, in] for y, [in, out] for dx. Its memory is scratch, until the
/// end of this, or that of a packed weight whose codes a product reads where they are.
class Fp8Base {
 public:
  Fp8Base(const Context& context, Fp8Recipe recipe, const WeightView& w, bool for_dx);

  Fp8Recipe recipe() const { return recipe_; }
  bool for_dx() const { return for_dx_; }
  const Fp8Operand& operand() const { return operand_; }
  /// What dy is multiplied with in rowwise: the scales of w's rows; else undefined.
  const Tensor& factors() const { return factors_; }

  /// Rows that a product takes for `rows` of x or dy.
  int64_t padded_rows(int64_t rows) const {
    const int64_t unit = recipe_ == Fp8Recipe::kBlockwise ? kFp8Unit : 1;
    return (rows + unit - 1) / unit * unit;
  }
  /// Rounds x or dy, with rows of zeros after it. float32 or bfloat16.
  Fp8Operand round(const Context& context, ArenaScope& scratch, const Tensor& x) const;

 private:
  ArenaScope scope_;
  Fp8Recipe recipe_;
  bool for_dx_;
  Fp8Operand operand_;
  Tensor factors_;
};

/// The operands of dw = dyᵀ x: rows are features, and tokens are padded with zeros.
struct Fp8WeightGradient {
  Fp8Operand dy, x;  ///< [out, R] and [in, R]

  Fp8WeightGradient(const Context& context, ArenaScope& scratch, Fp8Recipe recipe, const Tensor& dy, const Tensor& x);
};

}  // namespace hone
