// hone train, hone validate and hone prepare: what is done with one configuration.
#pragma once

#include <cstdint>
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

struct PrepareOptions {
  RunRequest run;
  std::optional<int64_t> debug;        ///< show so many samples whole
  std::optional<int64_t> split_nodes;  ///< write one file a node in place of everything else
  std::string output;                  ///< with split_nodes, and for data sets of type code: where
};

/// Tokenises the data sets of a configuration (into tokenized_cache, if it is stated), and prints the report and the
/// proof sheet; of the model it needs config.json and the tokenizer. With split_nodes it writes shards and
/// needs no model; with an output alone it writes the samples of data sets of type code (data/prepared_files.h).
/// Returns the exit code.
int run_prepare(const PrepareOptions& options);

}  // namespace hone
