namespace hone {
namespace {
constexpr int kLanes = 8;
}
}  // namespace hone

#include "kernels/cpu/row_math/row_functions.h"

namespace hone {

constinit const RowMath kRowMathAvx2 = kTable;

}  // namespace hone
