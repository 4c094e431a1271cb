// Linears in 8-bit floats on a CPU: the values of the rounded operands, multiplied in float32.
#pragma once

#include "ops/linear/linear.h"

namespace hone::cpu {

void linear_fp8(const Context& context, const LinearArgs& args);
void linear_fp8_grad(const Context& context, const LinearGradArgs& args);

}  // namespace hone::cpu
