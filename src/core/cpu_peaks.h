// What the arithmetic units of this CPU reach at most, measured: loops that live in registers and read no memory.
#pragma once

#include "core/dtype.h"
#include "core/thread_pool.h"

namespace hone {

/// FLOP/s of all threads of the pool together, multiply-adds counted twice: float32 fused multiply-adds of the widest
/// vectors, and for bfloat16 and int8 AMX tile products where the machine has them (elsewhere float32 arithmetic does
/// their work).
/// Takes less than a tenth of a second.
double measured_peak_flops(DType dtype, ThreadPool& pool);

}  // namespace hone
