#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>

#include "core/base/program.h"
#include "core/base/unix_seconds.h"
#include "core/text/json.h"
#include "train/run/run_observer.h"

namespace hone {

namespace {

/// Facts that are not in the run's phases.
struct RunFacts {
  std::string status;                               ///< completed, stopped early, or the signal that stopped it
  double start_time = 0, end_time = 0;              ///< seconds since 1970; of this process only, also in a resumed run
  std::optional<double> loss = {}, eval_loss = {};  ///< the last values
  int64_t skipped = 0;                              ///< steps whose numbers were not finite; of this process
};

template <class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json finite_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json(nullptr);
}

std::string utc(double seconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

Json metadata_of(const RunConfig& config, const RunFacts& facts) {
  return {{"run_name", config.report.run_name},
          {"output_dir", config.report.output_dir},
          {"status", facts.status},
          {"start_time", utc(facts.start_time)},
          {"end_time", utc(facts.end_time)},
          {"train_runtime", facts.end_time - facts.start_time},
          {"finetuning_type", name_of(config.model.finetuning_type)}};
}

Json model_of(const RunConfig& config, LoadedModel& model) {
  int64_t all = 0, trainable = 0;
  for (const Parameter& parameter : model.store().all()) {
    all += parameter.shape().numel();
    if (parameter.trainable()) trainable += parameter.shape().numel();
  }
  const DecoderConfig& decoder = model.decoder().config();
  return {{"model_name_or_path", config.model.model_name_or_path},
          {"model_type", model.config().json().value("model_type", Json(nullptr))},
          {"num_hidden_layers", decoder.layers.size()},
          {"hidden_size", decoder.hidden_size},
          {"vocab_size", decoder.vocab_size},
          {"dtype", name_of(config.model.dtype)},
          {"expert_weight_dtype", config.model.expert_weight_dtype.name()},
          {"base_weight_dtype", config.model.base_weight_dtype.name()},
          {"total_parameters", all},
          {"trainable_parameters", trainable},
          {"trainable_percent", all > 0 ? 100.0 * static_cast<double>(trainable) / static_cast<double>(all) : 0.0}};
}

Json patterns_json(const std::vector<LoraPattern>& patterns) {
  Json json = Json::object();
  for (const LoraPattern& pattern : patterns) json[pattern.pattern] = pattern.value;
  return json;
}

Json lora_of(const RunConfig& config, const LoadedModel& model) {
  if (!model.lora()) return nullptr;
  const LoraOptions& lora = *model.lora();
  return {{"lora_r", lora.r},
          {"lora_alpha", lora.alpha},
          {"lora_dropout", lora.dropout},
          {"use_rslora", lora.use_rslora},
          {"lora_target_modules", lora.target_modules},
          {"lora_target_parameters", lora.target_parameters},
          {"lora_rank_pattern", patterns_json(lora.rank_pattern)},
          {"lora_alpha_pattern", patterns_json(lora.alpha_pattern)},
          {"lora_modules_to_save", names_of(config.lora.modules_to_save)}};
}

Json training_of(const RunConfig& config, int64_t total_steps) {
  const RunConfig::Schedule& schedule = config.schedule;
  const RunConfig::Optim& optim = config.optim;
  return {{"num_train_epochs", schedule.max_steps ? Json(nullptr) : Json(schedule.num_train_epochs)},
          {"total_steps", total_steps},
          {"per_device_train_batch_size", schedule.per_device_train_batch_size},
          {"gradient_accumulation_steps", schedule.gradient_accumulation_steps},
          {"global_batch_size", schedule.global_batch_size},
          {"learning_rate", schedule.learning_rate},
          {"lr_scheduler_type", name_of(schedule.lr_scheduler_type)},
          {"warmup_steps", or_null(schedule.warmup_steps)},
          {"warmup_ratio", schedule.warmup_ratio},
          {"optim", name_of(optim.name)},
          {"adam_beta1", optim.adam_beta1},
          {"adam_beta2", optim.adam_beta2},
          {"weight_decay", optim.weight_decay},
          {"max_grad_norm", optim.max_grad_norm},
          {"gradient_checkpointing", name_of(config.model.gradient_checkpointing)},
          {"seed", config.machine.seed}};
}

Json dataset_of(const RunConfig& config, const RunState& state, const TrainingData& data) {
  Json paths = Json::array(), eval_paths = Json::array();
  const auto path_of = [](const DatasetConfig& set) {
    return set.samples ? fmt::format("{}#{}", set.path, *set.samples) : set.path;
  };
  for (const DatasetConfig& dataset : config.data.datasets) paths.push_back(path_of(dataset));
  for (const DatasetConfig& dataset : config.data.eval_datasets) eval_paths.push_back(path_of(dataset));
  return {{"datasets", paths},
          {"eval_datasets", eval_paths},
          {"val_split", config.data.val_split},
          {"max_length", or_null(config.data.max_length)},
          {"packing", config.data.packing},
          {"train_samples", data.train.size()},
          {"eval_samples", data.eval.size()},
          {"num_tokens", state.num_tokens},
          {"num_supervised_tokens", state.num_supervised_tokens}};
}

Json moe_of(const RunConfig& config, LoadedModel& model) {
  const DecoderConfig& decoder = model.decoder().config();
  if (decoder.num_moe_layers() == 0) return nullptr;
  return {{"num_moe_layers", decoder.num_moe_layers()},
          {"num_experts", decoder.moe.num_experts},
          {"num_experts_per_tok", decoder.moe.num_experts_per_tok},
          {"router_aux_loss_coef", or_null(config.model.router_aux_loss_coef)},
          {"freeze_router", config.model.freeze_router}};
}

Json metrics_of(const LoadedRun& run, const RunFacts& facts) {
  const RunState& state = run.state;
  const bool evaluated = state.best_step >= 0;
  const double runtime = facts.end_time - facts.start_time;
  return {{"global_step", state.step},
          {"skipped_steps", facts.skipped},
          {"epoch", run.state.epoch},
          {"loss", finite_or_null(facts.loss)},
          {"eval_loss", finite_or_null(facts.eval_loss)},
          {"metric_for_best_model", name_of(run.config().eval.metric_for_best_model)},
          {"best_metric", evaluated ? Json(state.best_metric) : Json(nullptr)},
          {"best_global_step", evaluated ? Json(state.best_step) : Json(nullptr)},
          {"train_runtime", runtime}};
}

/// What packing the base cost on the first micro-batch; null if it was not measured.
Json first_batch_of(const std::optional<BaseCost>& cost) {
  if (!cost) return nullptr;
  return {{"formats", cost->formats}, {"loss_packed_base", cost->packed}, {"loss_dense_base", cost->dense}};
}

/// Returns the sections metadata, model, lora (null without adapters), training, dataset, hardware, moe (null without
/// experts), first_batch (null without a packed base), metrics and versions; keys are named as in the configuration and
/// in metrics.jsonl.
Json info_of(const LoadedRun& run, const RunFacts& facts) {
  const RunConfig& config = run.config();
  RunContext& context = run.context();
  return {{"metadata", metadata_of(config, facts)},
          {"model", model_of(config, run.model())},
          {"lora", lora_of(config, run.model())},
          {"training", training_of(config, run.schedule().total_steps)},
          {"dataset", dataset_of(config, run.state, run.data())},
          {"hardware",
           {{"device", device_text(context.device())},
            {"threads", context.pool.size()},
            {"peak_memory_bytes", used_memory(context.device())}}},
          {"moe", moe_of(config, run.model())},
          {"first_batch", first_batch_of(run.base_cost)},
          {"metrics", metrics_of(run, facts)},
          {"versions", {{"hone", version()}}}};
}

class TrainingInfo : public RunObserver {
 public:
  explicit TrainingInfo(const LoadedRun& run) : run_(run), facts_{.status = {}, .start_time = unix_seconds()} {}

  void step_done(const StepDone& step) override { facts_.loss = step.result.loss.loss; }
  void evaluated(const EvalMetrics& metrics) override { facts_.eval_loss = metrics.eval_loss; }

  void ended(const RunEnd& end) override {
    facts_.skipped = end.skipped;
    facts_.status = !end.finished        ? "stopped by " + end.reason
                    : end.reason.empty() ? "completed"
                                         : "stopped early: " + end.reason;
    facts_.end_time = unix_seconds();
    write_text_file(std::filesystem::path(run_.config().report.output_dir) / "training_info.json",
                    info_of(run_, facts_).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }

 private:
  const LoadedRun& run_;
  RunFacts facts_;
};

}  // namespace

std::unique_ptr<RunObserver> training_info(const LoadedRun& run) {
  return run.context().writes() ? std::make_unique<TrainingInfo>(run) : nullptr;
}

}  // namespace hone
