// The tables of row functions, one per instruction set.
#pragma once

#include "kernels/cpu/row_math/row_math.h"

namespace hone {

extern const RowMath kRowMathBaseline;
extern const RowMath kRowMathAvx2;
extern const RowMath kRowMathAvx512;
extern const RowMath kRowMathAmx;

}  // namespace hone
