#include "train/report/run_rows.h"

namespace hone {

MetricsFile open_run_rows(const LoadedRun& run, const std::string& name) {
  const std::string path = run.config().report.output_dir + "/" + name;
  ResumedMetrics found;
  if (!run.resumed) return MetricsFile::create(path);
  return MetricsFile::resume(path, {run.state.step, run.state.evaluation_due}, found);
}

}  // namespace hone
