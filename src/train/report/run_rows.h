// Files of JSON rows in a run's folder, beside metrics.jsonl.
#pragma once

#include <string>

#include "report/metrics_file.h"
#include "train/run/loaded_run.h"

namespace hone {

/// Opens output_dir/NAME, whose rows each have a "step". A run that is resumed keeps the rows up to where it goes on;
/// any other begins anew.
MetricsFile open_run_rows(const LoadedRun& run, const std::string& name);

}  // namespace hone
