// The rate at which the CPU multiplies rows with experts, measured on a few of them.
#pragma once

#include <cstdint>

#include "core/thread_pool.h"
#include "params/parameter.h"

namespace hone {

/// FLOP/s of the products of `rows` rows an expert, in `dtype`, with experts of the size and in the format of `gate_up`
/// [E, 2I, H], on all threads of the pool: of forward, to which backward's are equal within a few percent. The values
/// are others, 128 MiB of them or one expert. Takes some tenths of a second; not during a step.
double measured_expert_rate(const Parameter& gate_up, int64_t rows, DType dtype, ThreadPool& pool);

}  // namespace hone
