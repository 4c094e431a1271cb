namespace hone {
namespace {
constexpr int kLanes = 16;
}
}  // namespace hone

#include "kernels/cpu/row_math/row_functions.h"

namespace hone {

constinit const RowMath kRowMathAmx = kTable;

}  // namespace hone
