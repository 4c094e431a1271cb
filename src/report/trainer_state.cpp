#include "report/trainer_state.h"

#include <cmath>

#include "core/durable_file.h"

namespace hone {
namespace {

Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

}  // namespace

Json to_json(const TrainerState& state) {
  const bool saved = state.best && !state.best->checkpoint.empty();
  Json json;
  json["best_global_step"] = state.best ? Json(state.best->step) : Json(nullptr);
  json["best_metric"] = state.best ? number_or_null(state.best->metric) : Json(nullptr);
  json["best_model_checkpoint"] = saved ? Json(state.best->checkpoint) : Json(nullptr);
  json["epoch"] = number_or_null(state.epoch);
  json["eval_steps"] = state.eval_steps;
  json["global_step"] = state.global_step;
  json["is_hyper_param_search"] = false;
  json["is_local_process_zero"] = true;
  json["is_world_process_zero"] = true;
  json["log_history"] = state.log_history;
  json["logging_steps"] = state.logging_steps;
  json["max_steps"] = state.max_steps;
  json["num_input_tokens_seen"] = state.num_input_tokens_seen;
  json["num_train_epochs"] = number_or_null(std::ceil(state.num_train_epochs));
  json["save_steps"] = state.save_steps;
  json["stateful_callbacks"] = Json::object();
  json["total_flos"] = 0;
  json["train_batch_size"] = state.train_batch_size;
  json["trial_name"] = nullptr;
  json["trial_params"] = nullptr;
  return json;
}

void write_trainer_state(const TrainerState& state, const std::string& folder) {
  const std::string path = folder + "/trainer_state.json";
  write_durably(path, to_json(state).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace hone
