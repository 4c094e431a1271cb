// Products of frozen experts in 8-bit floats: e4m3 codes with one scale for a matrix of an expert (fp8_matrix), and
// with one for each row of what they are multiplied with.
#pragma once

#include "ops/moe_experts/moe_experts.h"

namespace hone::cuda {

/// Whether this GPU multiplies the weights [E, N, K] of a half so: N a multiple of 256, K of 128, SwiGLU.
bool experts_multiply_in_fp8(const Context& context, const Shape& weight, const MlpActivation& function);

// As the ops of the same names without `fp8`, for weights whose view has their codes (WeightProduct::kFp8Experts),
// without biases and adapters.
void moe_gate_up_fp8(const Context& context, const MoeGateUpArgs& args);
void moe_gate_up_grad_fp8(const Context& context, const MoeGateUpGradArgs& args);
void moe_down_fp8(const Context& context, const MoeDownArgs& args);
void moe_down_grad_fp8(const Context& context, const MoeDownGradArgs& args);

}  // namespace hone::cuda
