// When ranks tell each other how their hosts are doing, and what each host has to say.
#pragma once

#include <optional>

#include "report/mlflow/system_metrics.h"
#include "train/wall_clock.h"

namespace hone {

struct SystemWatch {
  std::optional<SystemMetrics> host;               ///< of the first rank of a host
  double interval = 10;                            ///< seconds
  std::optional<WallClock::time_point> last = {};  ///< none: they have not told anything yet
};

}  // namespace hone
