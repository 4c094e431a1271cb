// What a step computes, and what its device could: mfu is the ratio of their rates.
#pragma once

#include <optional>
#include <string>

#include "core/device.h"
#include "core/dtype.h"
#include "core/thread_pool.h"
#include "data/micro_batch.h"
#include "nn/module_facts.h"

namespace hone {

/// What a step's forward passes go through together.
ForwardWork work_of(const StepData& data);

/// Dense TFLOP/s of a GPU by its data sheet.
struct GpuRate {
  double bf16 = 0, float32 = 0;  ///< float32 without tensor cores
};
/// Of the GPU with this name of the driver's. Maker, brand, socket and memory aside, the name must be the table's:
/// nothing for others, among them a laptop's version, part of a GPU (MIG) and a virtual one.
std::optional<GpuRate> rate_of_gpu(const std::string& name);

/// FLOP/s that count as 1 in mfu. A GPU's is the dense tensor-core rate of its data sheet at `dtype`, nothing for a GPU
/// that is not in the table; a CPU's is measured on the threads of the pool (core/cpu_peaks.h).
std::optional<double> peak_flops(Device device, DType dtype, ThreadPool& pool);

}  // namespace hone
