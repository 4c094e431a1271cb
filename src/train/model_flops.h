// FLOPs of a step and peak FLOP/s of its device; mfu is the ratio of achieved to peak rate.
#pragma once

#include <optional>
#include <string>

#include "core/device.h"
#include "core/dtype.h"
#include "core/thread_pool.h"
#include "data/micro_batch.h"
#include "nn/module_facts.h"

namespace hone {

/// Forward work of all micro-batches of a step.
ForwardWork work_of(const StepData& data);

/// Dense TFLOP/s of a GPU by its data sheet.
struct GpuRate {
  double bf16 = 0, float32 = 0;  ///< float32 without tensor cores
};
/// Rate of a GPU by the driver's name for it. Words for maker, brand, socket and memory are ignored; the rest must
/// match the table. Returns nothing for other names, including laptop versions, parts of a GPU (MIG) and virtual GPUs.
std::optional<GpuRate> rate_of_gpu(const std::string& name);

/// The FLOP/s that count as mfu 1. For a GPU, the dense tensor-core rate of its data sheet at `dtype`, nothing if it is
/// not in the table; for a CPU, measured on the threads of the pool (core/cpu_peaks.h).
std::optional<double> peak_flops(Device device, DType dtype, ThreadPool& pool);

}  // namespace hone
