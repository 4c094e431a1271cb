// What a step computes, and what its device could: mfu is the ratio of their rates.
#pragma once

#include <optional>

#include "core/device.h"
#include "core/dtype.h"
#include "core/thread_pool.h"
#include "data/micro_batch.h"
#include "nn/decoder_config.h"

namespace hone {

/// What a forward pass goes through.
struct ForwardWork {
  double tokens = 0;
  double supervised = 0;  ///< those whose logits are computed
  double pairs = 0;       ///< of a token and one that it may attend to: half the square of each document's length
};

ForwardWork work_of(const StepData& data);

/// Multiply-adds × 2 of a forward pass: products of attention, MLPs or chosen experts, router and head, causal
/// attention, and the recurrence of linear attention. Windows are not counted, nor are adapters. Backward costs twice
/// as much, or once where only adapters are trained.
double forward_flops(const DecoderConfig& config, const ForwardWork& work);

/// FLOP/s that count as 1 in mfu. A GPU's is the dense tensor-core rate of its data sheet at `dtype`, nothing for a GPU
/// that is not in the table; a CPU's is measured on the threads of the pool (core/cpu_peaks.h).
std::optional<double> peak_flops(Device device, DType dtype, ThreadPool& pool);

}  // namespace hone
