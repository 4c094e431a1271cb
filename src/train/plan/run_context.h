// RunContext: resources that all phases of a run share: logger, ranks, threads and stream.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "core/cpu/thread_pool.h"
#include "core/stream/stream.h"
#include "core/text/json_value.h"
#include "report/log.h"
#include "session/device_facts.h"
#include "train/plan/trainer_ranks.h"

namespace hone {

/// Functions that write the configuration, and read what was written; an empty function does nothing.
struct ConfigWriter {
  std::function<std::string(const RunConfig&)> yaml;                                        ///< config.resolved.yaml
  std::function<std::vector<std::pair<std::string, std::string>>(const RunConfig&)> pairs;  ///< for trackers
  /// Defaults to log once the configuration has been accepted; "": none.
  std::function<std::string(const RunConfig&)> defaults;
  /// Reads the config.resolved.yaml of an earlier run. UserError: it cannot be read.
  std::function<RunConfig(const std::filesystem::path& file)> read = {};
};

/// Told of each row of metrics.jsonl, on the rank that writes them.
using MetricsListener = std::function<void(const JsonValue& row)>;

struct RunContext {
  /// Acquires the device and the threads selected by `machine`, and warns of a GPU that device: auto passes over. The
  /// logger and its console must outlive it. Of several ranks only the first writes files other than its log; the
  /// consoles of the others should be silent.
  RunContext(const RunConfig::Machine& machine, Logger& log, ConfigWriter writer = {}, TrainerRanks among = {})
      : logger(log),
        config_writer(std::move(writer)),
        ranks(std::move(among)),
        pool(rank_threads(static_cast<int>(machine.threads.value_or(0)), ranks.cores_shared_by)),
        stream(choose_rank_device(machine.device, ranks.local_rank, ranks.local_size, ranks.size), pool) {
    const std::string reason = why_no_gpu_is_used(machine.device, device());
    if (!reason.empty()) logger.warning("{}", reason);
  }

  bool writes() const { return ranks.rank == 0; }
  Device device() const { return stream.device(); }

  Logger& logger;
  ConfigWriter config_writer;
  TrainerRanks ranks;
  ThreadPool pool;
  Stream stream;
  MetricsListener on_metrics = {};
};

}  // namespace hone
