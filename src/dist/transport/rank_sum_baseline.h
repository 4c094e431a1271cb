// The elementwise sum of tensors of several ranks, in rank order.
#pragma once

#include <cstddef>
#include <span>

#include "core/base/dtype.h"
#include "core/cpu/thread_pool.h"

namespace hone {

/// out[i] = ((s0[i] + s1[i]) + s2[i]) + … for i < count. `out` may be one of the sources. bf16 is summed in float32 and
/// rounded once. Dtypes: f32, f64, bf16, i64.
void rank_sum(DType dtype, std::byte* out, std::span<const std::byte* const> sources, int64_t count, ThreadPool& pool);

}  // namespace hone
