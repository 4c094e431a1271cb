#include "kernels/cpu/row_math/row_math.h"

#include "core/cpu/cpu_features.h"
#include "kernels/cpu/row_math/row_math_tables.h"

namespace hone {

const RowMath& row_math() {
  switch (active_isa()) {
#if defined(__x86_64__)
    case Isa::kAmx:
      return kRowMathAmx;
    case Isa::kAvx512:
      return kRowMathAvx512;
    case Isa::kAvx2:
      return kRowMathAvx2;
#endif
    default:
      return kRowMathBaseline;
  }
}

}  // namespace hone
