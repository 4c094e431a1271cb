// The time of a step by data sheets: enough to compare plans of one run.
#pragma once

#include "core/cuda/gpu_models.h"
#include "train/step/engine.h"

namespace hone {

/// Seconds of a micro-batch on a GPU: forward beside the copies of what it keeps to host memory, then backward, with
/// what it recomputes, beside the copies back and those of weights in host memory. Fixed shares of the data sheet's
/// rates, so that every run and rank predicts the same.
double predicted_seconds(const MemoryPlan& plan, const GpuModel& gpu);

}  // namespace hone
