// Where a run's metrics go.
#pragma once

namespace hone {

enum class ReportTarget {
  kJsonl,  ///< metrics.jsonl
  kTensorboard,
  kMlflow,
  kWandb,  ///< Weights & Biases
  kTrackio,
  kPrometheus,  ///< GET /metrics of the run's own port
};

}  // namespace hone
