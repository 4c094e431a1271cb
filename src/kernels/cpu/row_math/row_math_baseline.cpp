namespace hone {
namespace {
constexpr int kLanes = 4;
}
}  // namespace hone

#include "kernels/cpu/row_math/row_functions.h"

namespace hone {

constinit const RowMath kRowMathBaseline = kTable;

}  // namespace hone
