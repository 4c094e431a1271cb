// fp8_operand: operands of matrix products in 8-bit floats, by the recipes of formats/fp8.h.
#pragma once

#include <optional>

#include "core/memory/arena.h"
#include "core/stream/context.h"
#include "formats/fp8.h"
#include "tape/weight.h"

namespace hone {

/// An operand of a product, K-major: x[r, k] = codes[r, k] · its scale.
struct Fp8Operand {
  Tensor codes;   ///< u8 [rows, k], k a multiple of kFp8Unit
  Tensor scales;  ///< float32, as the functions below shape them
  Fp8Code code = Fp8Code::kE4m3;
};

/// Factors by the group of a row: rows [offsets[e], offsets[e + 1]) are of group e, whose columns are `parts` equal
/// parts, part p with the factor scales[(parts · e + p) · pitch].
struct Fp8GroupFactors {
  Tensor offsets = {};            ///< i64 [E + 1]; undefined: no such factors
  const float* scales = nullptr;  ///< on the device
  int64_t pitch = 1, parts = 1;
};

/// Rows of activations or of their gradients:
///   to.codes [R, k] with R >= T; rows from T on are zeros. to.scales: tensorwise [1], rowwise [R], blockwise
///   [ceil(k / 128), R], as cuBLASLt reads scales of 1 x 128 (CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F).
struct Fp8RowsArgs {
  Fp8Recipe recipe = Fp8Recipe::kRowwise;
  Tensor x;             ///< [T, k] float32 or bfloat16
  Tensor factors = {};  ///< float32 [k]: what is held is x[t, k] · factors[k], in float32; or undefined
  /// The same by groups of rows, of rowwise alone. Rows of no group are held as they are.
  Fp8GroupFactors group_factors = {};
  Fp8Operand to;
};
/// Deterministic; the same bits on every device.
void fp8_rows(const Context& context, const Fp8RowsArgs& args);
/// Memory for it.
Fp8Operand take_fp8_rows(ArenaScope& scratch, Fp8Recipe recipe, int64_t rows, int64_t k, Fp8Code code);

/// Activations or their gradients x [T, k], whose columns are the rows of an operand that a product sums over tokens:
///   to.codes [k, R] with R >= T a multiple of kFp8Unit, k, too; elements from T on are zeros. to.scales, as of rows
///   [k, R]: tensorwise [1], rowwise [k], blockwise [ceil(R / 128), k].
struct Fp8ColumnsArgs {
  Fp8Recipe recipe = Fp8Recipe::kRowwise;
  Tensor x;  ///< float32 or bfloat16
  Fp8Operand to;
};
/// Deterministic; the same bits on every device.
void fp8_columns(const Context& context, const Fp8ColumnsArgs& args);

/// A weight w [n, k], n and k multiples of kFp8Unit. Dense: float32 or bfloat16. Packed: in the format that the recipe
/// reads (weight_product_of), whose codes are taken as they are.
///   to.codes [n, k] or, transposed, [k, n].
///   to.scales, of the matrix that is written, [rows, columns]: tensorwise [1]; rowwise [rows]; blockwise
///   [ceil(rows / 128), ceil(ceil(columns / 128) / 4) · 4], as cuBLASLt reads scales of 128 x 128
///   (CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F).
/// The scales of rowwise are those of w's rows: a product with a transposed w takes them as `factors` of its other
/// operand, and to.scales are ones.
struct Fp8WeightArgs {
  Fp8Recipe recipe = Fp8Recipe::kRowwise;
  WeightView w;
  bool transposed = false;
  Fp8Operand to;
  Tensor factors = {};  ///< float32 [n], of rowwise and transposed alone
};
/// Deterministic; the same bits on every device.
void fp8_weight(const Context& context, const Fp8WeightArgs& args);
/// Memory for it.
Fp8Operand take_fp8_weight(ArenaScope& scratch, Fp8Recipe recipe, const Shape& shape, bool transposed);
/// The codes of a packed weight where they are, if a product can read them and their scales so; else nullopt.
std::optional<Fp8Operand> fp8_weight_in_place(Fp8Recipe recipe, const WeightView& w);

/// The codes of a stack of matrices [rows, columns], each transposed: to [groups, columns, parts · rows] u8, where a
/// group is `parts` consecutive matrices. On a GPU alone; rows and columns multiples of kFp8Unit, at most 65,535
/// matrices.
struct Fp8StackArgs {
  PackedWeight w;  ///< in fp8_matrix
  int64_t parts = 1;
  Tensor to;
};
void fp8_transposed_stack(const Context& context, const Fp8StackArgs& args);

/// Which formats a product of this recipe reads.
WeightProduct weight_product_of(Fp8Recipe recipe);

namespace cpu {
void fp8_rows(const Context& context, const Fp8RowsArgs& args);
void fp8_columns(const Context& context, const Fp8ColumnsArgs& args);
void fp8_weight(const Context& context, const Fp8WeightArgs& args);
}  // namespace cpu

namespace cuda {
void fp8_transposed_stack(const Context& context, const Fp8StackArgs& args);
void fp8_rows(const Context& context, const Fp8RowsArgs& args);
void fp8_columns(const Context& context, const Fp8ColumnsArgs& args);
void fp8_weight(const Context& context, const Fp8WeightArgs& args);
}  // namespace cuda

}  // namespace hone
