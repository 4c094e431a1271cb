// The rows of the memory tables that trainer, estimate and benchmark print: contents, formats and bytes.
#pragma once

#include <string>
#include <vector>

#include "config/run_options.h"
#include "report/table.h"
#include "train/step/engine.h"

namespace hone {

/// Rows for weights, master weights, gradients, optimizer, activations (with `activations` as note) and batch, and on a
/// GPU for its libraries.
std::vector<MemoryRow> memory_rows(const MemoryPlan& plan, const RunPrecision& precision,
                                   const std::string& activations);

/// "host memory 57.1 GB"; "" if nothing is offloaded. Adds "of `available`" unless that is 0.
std::string host_memory_line(const MemoryPlan& plan, int64_t available);

}  // namespace hone
