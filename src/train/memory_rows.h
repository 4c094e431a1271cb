// The rows of the memory tables that trainer, estimate and benchmark print: contents, formats and bytes.
#pragma once

#include <string>
#include <vector>

#include "report/table.h"
#include "train/engine.h"

namespace hone {

/// The formats of a run's state.
struct RunPrecision {
  DType weights = DType::kBF16;
  const WeightFormat* experts = &dense_format();
  std::string base = "dtype";  ///< base_weight_dtype, for frozen weights
  TrainingFormats formats;
  bool layers_share_gradients = false;
  OptimizerOptions optimizer = {};
  ZeroStage stage = ZeroStage::kNone;  ///< which of it is sharded over `ranks`
  int64_t ranks = 1;                   ///< in a shard group
};

/// Rows for weights, master weights, gradients, optimizer, activations (with `activations` as note) and batch, and on a
/// GPU for its libraries.
std::vector<MemoryRow> memory_rows(const MemoryPlan& plan, const RunPrecision& precision,
                                   const std::string& activations);

/// "host memory 57.1 GB"; "" if nothing is offloaded. Adds "of `available`" unless that is 0.
std::string host_memory_line(const MemoryPlan& plan, int64_t available);

}  // namespace hone
