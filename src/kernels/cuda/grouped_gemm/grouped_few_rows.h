// The bfloat16 products of grouped_gemm.h for groups of few rows, as a pass of generation has them: each weight is read
// once, straight into registers. CUDA only.
#pragma once

#include "kernels/cuda/grouped_gemm/grouped_gemm.h"

namespace hone::cuda {

/// Whether this kernel supports the arguments and is made for them: args.decode, at most kFewRows rows a group on
/// average, K-major weights in bfloat16 without a low-rank product, K a multiple of 64, N of 16, and tensor cores.
/// Depends only on shapes, types and the device.
bool few_rows_can_run(const Context& context, const GroupedGemmArgs& args);
inline constexpr int64_t kFewRows = 8;

/// The bits of a row depend neither on other rows nor on their number.
void grouped_few_rows(const Context& context, const GroupedGemmArgs& args);

}  // namespace hone::cuda
