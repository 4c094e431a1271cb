// hone train and hone validate: what is done with one configuration.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/config/resolve.h"
#include "report/log.h"

namespace hone {

/// A configuration and what to print.
struct RunRequest {
  std::string config;                      ///< file; "" with overrides alone
  std::vector<std::string> overrides;      ///< key=value, --key value
  std::optional<LogLevel> log_level = {};  ///< of the console; each verb has its own default
};

/// Reads and resolves the configuration of so many ranks and logs its notes. Model and data must be stated.
ResolvedConfig load_run(const RunRequest& request, Logger& logger, int64_t ranks = 1);

/// Trains, or with `dry_run` tries one step and writes nothing. Returns the exit code.
int run_train(const RunRequest& request, bool dry_run);

/// Checks configuration, model headers, data and output folder, shows a sample with its mask; writes nothing.
int run_validate(const RunRequest& request);

}  // namespace hone
