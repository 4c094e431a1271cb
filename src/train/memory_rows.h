// What a run's memory holds, and in which formats: the rows of the tables that trainer, estimate and benchmark print.
#pragma once

#include <string>
#include <vector>

#include "report/table.h"
#include "train/engine.h"

namespace hone {

/// The formats a run keeps its state in.
struct RunPrecision {
  DType weights = DType::kBF16;
  const WeightFormat* experts = &dense_format();
  std::string base = "dtype";  ///< of frozen weights: base_weight_dtype
  TrainingFormats formats;
  bool layers_share_gradients = false;
  OptimizerOptions optimizer = {};
  ZeroStage stage = ZeroStage::kNone;  ///< what of it each of `ranks` keeps a part of
  int64_t ranks = 1;
};

/// weights, master weights, gradients, optimizer, activations (with `activations` as their note), batch.
std::vector<MemoryRow> memory_rows(const MemoryPlan& plan, const RunPrecision& precision,
                                   const std::string& activations);

/// "host memory 57.1 GB"; "" where nothing is offloaded. Of `available` bytes, unless that is 0.
std::string host_memory_line(const MemoryPlan& plan, int64_t available);

}  // namespace hone
