// Measured peak throughput of this CPU's arithmetic units: loops on registers without memory accesses.
#pragma once

#include "core/dtype.h"
#include "core/thread_pool.h"

namespace hone {

/// FLOP/s of all threads of the pool together; a multiply-add counts as two. float32: fused multiply-adds of the widest
/// vectors; bfloat16 and int8: AMX tile products if supported, else float32. Takes less than a tenth of a second.
double measured_peak_flops(DType dtype, ThreadPool& pool);

}  // namespace hone
