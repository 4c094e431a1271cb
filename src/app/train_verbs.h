// hone train, hone eval and hone validate: what is done with one configuration.
#pragma once

#include <string>
#include <vector>

#include "report/log.h"

namespace hone {

/// A configuration and what to print.
struct RunRequest {
  std::string config;                  ///< file; "" with overrides alone
  std::vector<std::string> overrides;  ///< key=value, --key value
  LogLevel log_level = LogLevel::kInfo;
};

/// Trains, or with `dry_run` tries one step and writes nothing. Returns the exit code.
int run_train(const RunRequest& request, bool dry_run);

struct EvalRequest {
  RunRequest run;
  std::string checkpoint;  ///< a folder that training wrote, in place of the model or adapter of the configuration
  bool json = false;
};

/// Loss, perplexity and token accuracy on the evaluation data (without any: on `datasets`).
int run_eval(const EvalRequest& request);

/// Checks configuration, model headers, data and output folder, shows a sample with its mask; writes nothing.
int run_validate(const RunRequest& request);

}  // namespace hone
