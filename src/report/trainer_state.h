// trainer_state.json in the shape of the Hugging Face Trainer, for the tools that plot or inspect its runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"

namespace hone {

/// The best evaluation so far by metric_for_best_model.
struct BestModel {
  double metric = 0;
  int64_t step = 0;
  std::string checkpoint = {};  ///< its folder; empty while it is not saved
};

struct TrainerState {
  int64_t global_step = 0;
  int64_t max_steps = 0;
  double epoch = 0;
  double num_train_epochs = 0;
  int64_t num_input_tokens_seen = 0;
  int64_t train_batch_size = 0;  ///< per_device_train_batch_size
  int64_t logging_steps = 1, eval_steps = 0, save_steps = 0;
  std::optional<BestModel> best = {};
  std::vector<Json> log_history = {};  ///< the objects of metrics.jsonl, in order
};

Json to_json(const TrainerState& state);

/// Replaces `folder`/trainer_state.json. Errors: UserError.
void write_trainer_state(const TrainerState& state, const std::string& folder);

}  // namespace hone
