// The trackers of a run that have a client in Python alone, from its configuration.
#pragma once

#include <vector>

#include "config/run_config.h"
#include "report/tracker/package_store.h"

namespace hone {

/// The options of those that report_to names, without folder and params.
std::vector<PackageOptions> tracker_packages(const RunConfig& config);

/// Throws UserError if the package of one is missing.
void require_tracker_packages(const RunConfig& config);

}  // namespace hone
