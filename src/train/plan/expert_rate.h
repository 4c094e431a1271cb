// The rate at which the CPU multiplies rows with experts, measured on a few of them.
#pragma once

#include <cstdint>

#include "core/cpu/thread_pool.h"
#include "params/parameter.h"

namespace hone {

/// FLOP/s of the products of `rows` rows an expert, in `dtype`, with experts of the size and in the format of `gate_up`
/// [E, 2I, H], on all threads of the pool, in forward. The values are others: of as many experts as 128 MiB and some
/// hundredths of a second hold, or one. Not during a step.
double measured_expert_rate(const Parameter& gate_up, int64_t rows, DType dtype, ThreadPool& pool);

}  // namespace hone
