// hone train, hone validate and hone prepare: the verbs that use one configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/resolve.h"
#include "report/log.h"
#include "train/plan/run_context.h"

namespace hone {

/// A configuration and what to print.
struct RunRequest {
  std::string config;                      ///< file; "": overrides only
  std::vector<std::string> overrides;      ///< key=value, --key value
  std::optional<LogLevel> log_level = {};  ///< what the console shows; each verb has its own default
  MetricsListener on_metrics = {};         ///< called with training's metrics
};

/// Reads and resolves a configuration for `ranks` ranks and logs its notes. Model and data must be stated.
ResolvedConfig load_run(const RunRequest& request, Logger& logger);

/// Trains, or with `dry_run` runs one step and writes nothing. Returns the exit code.
int run_train(const RunRequest& request, bool dry_run);

/// Checks configuration, model headers, data and output folder, and prints a sample with its mask. Writes nothing.
int run_validate(const RunRequest& request);

struct PrepareOptions {
  RunRequest run;
  std::optional<int64_t> debug;        ///< number of samples to print completely
  std::optional<int64_t> split_nodes;  ///< only write one file per node
  std::string output;                  ///< the output path, for split_nodes and data sets of type code
  bool force = false;                  ///< replace files in it
};

/// Tokenises the data sets of a configuration (into tokenized_cache, if stated), and prints the report and the proof
/// sheet; needs the model's config.json and tokenizer. With split_nodes it writes shards and does not need a model.
/// With only an output it writes the samples of data sets of type code (data/dataset/prepared_files.h). Returns the
/// exit code.
int run_prepare(const PrepareOptions& options);

}  // namespace hone
