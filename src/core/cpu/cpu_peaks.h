// Measured peak throughput of this CPU: of its arithmetic units, by loops on registers without memory accesses, and of
// its memory.
#pragma once

#include "core/base/dtype.h"
#include "core/cpu/thread_pool.h"

namespace hone {

/// FLOP/s of all threads of the pool together; a multiply-add counts as two. float32: fused multiply-adds of the widest
/// vectors; bfloat16 and int8: AMX tile products if supported, else float32. Of what the machine has, whatever level
/// kernels use (active_isa). Takes less than a tenth of a second.
double measured_peak_flops(DType dtype, ThreadPool& pool);

/// Bytes per second that all threads of the pool together read from memory.
/// Allocates 512 MiB for about a fifth of a second.
double measured_read_rate(ThreadPool& pool);

}  // namespace hone
