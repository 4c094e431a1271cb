// Sums over rows in two steps: CTAs sum parts of the rows, then the parts are added in order. Included by *_cuda.cu
// only.
#pragma once

#include <algorithm>

#include "core/stream/context.h"
#include "tape/weight.h"

namespace hone::cuda {

/// Number of parts of the rows, so that CTAs of at least `block_rows` rows fill a GPU (some 264 CTAs) if each part
/// needs `blocks` CTAs. Does not decrease with more rows.
inline int64_t parts_of(int64_t rows, int64_t blocks, int64_t block_rows) {
  constexpr int64_t kFull = 264;
  return std::clamp(kFull / blocks, int64_t{1}, std::max<int64_t>((rows + block_rows - 1) / block_rows, 1));
}

/// sum[i, j] = alpha · Σ_part parts[part, i, j] + beta · sum, float32; sum [I, J], or [J, I] if transposed.
void add_parts(const Context& context, const Tensor& parts, float alpha, const GradDest& sum, bool transposed);

/// sum[j] = Σ_t rows[t, j] + beta · sum for rows [T, J] in float32 or bfloat16, in a fixed order.
void sum_over_rows(const Context& context, const Tensor& rows, const GradDest& sum);

}  // namespace hone::cuda
