// kept_rows: rows of activations that wait for backward in 8-bit floats (tape/value_format.h), half the bytes of
// bfloat16.
#pragma once

#include "ops/fp8_operand/fp8_operand.h"
#include "tape/value_format.h"

namespace hone {

/// How x [T, k] is kept: as fp8_rows() of Fp8Recipe::kBlockwise writes it in e4m3, one float32 scale for 1 x 128.
/// T · (k + 4 · ceil(k / 128)) bytes; k must be a multiple of kFp8Unit. An element comes back within 2^-4 of itself or
/// within 2^-10 · m / 448 of it, m its group's largest magnitude, whichever is more, and is then rounded to the dtype.
/// Zeros stay zeros. A group with an infinity or NaN comes back as NaN, so that it is noticed.
const ValueFormat& fp8_value_format();

/// x[t, j] = code · scale, rounded to the dtype of x: the values of rows that fp8_rows() wrote by kBlockwise in e4m3.
struct RestoreRowsArgs {
  Fp8Operand from;  ///< codes [T, k], scales [ceil(k / 128), T]
  Tensor x;         ///< [T, k] float32 or bfloat16
};
/// Deterministic; the same bits on every device, but for those of NaN.
void restore_rows(const Context& context, const RestoreRowsArgs& args);

namespace cpu {
void restore_rows(const Context& context, const RestoreRowsArgs& args);
}

namespace cuda {
void restore_rows(const Context& context, const RestoreRowsArgs& args);
}

}  // namespace hone
