// Dense products of few rows, as a pass of generation has them: bound by reading the weights once. Several weights of
// the same rows go together, since each is too small to fill a GPU. CUDA only.
#pragma once

#include <array>

#include "core/stream/context.h"

namespace hone::cuda {

inline constexpr size_t kMostFewRowsWeights = 3;
inline constexpr int64_t kMostFewRows = 64;

/// c_i[r, n] = Σ_k a[r, k] · b_i[n, k] for up to three weights: a [R, K], b_i [N_i, K] and c_i [R, N_i], all bfloat16,
/// float32 sums, rounded once. Weights that are not there are undefined, after the others.
struct FewRowsMatmulArgs {
  Tensor a;
  std::array<Tensor, kMostFewRowsWeights> b, c;
};

/// Whether this kernel supports the arguments and is made for them: a GPU of tier sm90, 1 to kMostFewRows rows, K a
/// multiple of 64 from 512 to 4096, N_i multiples of 128, together at most 16,384 (more of them fill a GPU otherwise).
/// Depends only on shapes, dtypes and the device.
bool few_rows_matmul_can_run(const Context& context, const FewRowsMatmulArgs& args);

/// The bits of a row depend neither on other rows nor on their number nor on which weights go together.
void few_rows_matmul(const Context& context, const FewRowsMatmulArgs& args);

}  // namespace hone::cuda
