// What a step computes, and what its device could: mfu is the ratio of their rates.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/thread_pool.h"
#include "data/micro_batch.h"
#include "nn/decoder_config.h"

namespace hone {

/// What a forward pass goes through.
struct ForwardWork {
  double tokens = 0;
  double supervised = 0;          ///< those whose logits are computed
  std::vector<double> documents;  ///< their lengths

  /// Pairs of a token and one that it attends to within a window; 0: half the square of each document's length.
  double pairs(int64_t window) const;
};

ForwardWork work_of(const StepData& data);

/// Multiply-adds × 2 of a forward pass: products of attention, MLPs or chosen experts, router and head, causal
/// attention within its windows, and the recurrence of linear attention. Adapters are not counted. Backward costs twice
/// as much, or once where only adapters are trained.
double forward_flops(const DecoderConfig& config, const ForwardWork& work);

/// Dense TFLOP/s of a GPU by its data sheet.
struct GpuRate {
  double bf16 = 0, float32 = 0;  ///< float32 without tensor cores
};
/// Of the GPU whose name, as the driver reports it, has a name of the table as words; nothing for others.
std::optional<GpuRate> rate_of_gpu(const std::string& name);

/// FLOP/s that count as 1 in mfu. A GPU's is the dense tensor-core rate of its data sheet at `dtype`, nothing for a GPU
/// that is not in the table; a CPU's is measured on the threads of the pool (core/cpu_peaks.h).
std::optional<double> peak_flops(Device device, DType dtype, ThreadPool& pool);

}  // namespace hone
