// training_info.json: what a run was, in one file beside its model.
#pragma once

#include "core/json_fwd.h"
#include "session/loaded_model.h"
#include "session/run_config.h"
#include "train/training_state.h"

namespace hone {

struct RunFacts {
  std::string status;                   ///< completed, stopped early, or the signal that stopped it
  double start_time = 0, end_time = 0;  ///< seconds since 1970; of this process, not of the run that it resumed
  std::string device;
  int64_t threads = 0;
  uint64_t peak_memory = 0;  ///< bytes in use
  int64_t total_steps = 0;
  double epoch = 0;
  int64_t train_samples = 0, eval_samples = 0;
  std::optional<double> loss, eval_loss;  ///< the last ones
};

/// The sections metadata, model, lora (null without adapters), training, dataset, hardware, moe (null without experts),
/// metrics and versions; keys have the names of the configuration and of metrics.jsonl.
Json training_info(const RunConfig& config, LoadedModel& model, const RunState& state, const RunFacts& facts);

}  // namespace hone
