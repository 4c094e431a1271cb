// FLOPs of a step and peak FLOP/s of its device; mfu is the ratio of achieved to peak rate.
#pragma once

#include <optional>

#include "core/base/device.h"
#include "core/base/dtype.h"
#include "core/cpu/thread_pool.h"
#include "data/packing/micro_batch.h"
#include "nn/module_facts.h"

namespace hone {

/// Forward work of all micro-batches of a step.
ForwardWork work_of(const StepData& data);

/// The FLOP/s that count as mfu 1. For a GPU, the dense tensor-core rate of its data sheet at `dtype`, nothing if it is
/// not known (core/cuda/gpu_models.h); for a CPU, measured on the threads of the pool (core/cpu/cpu_peaks.h).
std::optional<double> peak_flops(Device device, DType dtype, ThreadPool& pool);

}  // namespace hone
