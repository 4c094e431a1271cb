#include "train/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "data/repeats.h"
#include "report/humanise.h"
#include "session/device_facts.h"
#include "train/data_identity.h"
#include "train/model_flops.h"
#include "train/saved_chat.h"
#include "train/saved_tokenizer.h"
#include "train/wall_clock.h"

namespace hone {

namespace {

/// With nan_policy: skip, a run that loses this many steps in a row is not learning any more.
constexpr int64_t kMostSkippedSteps = 10;

}  // namespace

ExitCode Trainer::run_alone_or_with_ranks() {
  std::optional<std::filesystem::path> checkpoint = writes() ? open_output() : std::nullopt;
  load_model_headers();
  report_model();
  const bool overwrites =
      config_.checkpoint.overwrite_output_dir && config_.checkpoint.resume_from_checkpoint == "false";
  if (writes()) run_folder_->require_space(least_saved_bytes(model_->store(), config_), overwrites);
  load_data();
  report_data();
  connect();
  checkpoint = from_first_rank(checkpoint);
  if (!writes()) open_logs();
  if (writes()) checkpoints_.require_free_names(schedule_.total_steps);
  make_engine();
  fit_memory();
  load_weights(false);
  engine_->reserve();
  state_.seed = static_cast<uint64_t>(config_.machine.seed);
  state_.data = data_identity(training_data(), config_);
  const bool resumed = resume_from(checkpoint);
  state_.total_steps = schedule_.total_steps;
  const StopSignal stop;  // until here a signal ends the program, and everything is as it was
  if (writes() && overwrites) run_folder_->set_aside();
  if (config_writer_.yaml && writes()) {
    write_text_file(std::filesystem::path(config_.report.output_dir) / "config.resolved.yaml",
                    config_writer_.yaml(config_));
  }

  stream_.synchronize();  // the measurement of a CPU has its threads to itself
  peak_flops_ = peak_flops(stream_.device(), dtype_of(config_), pool_);
  gpu_monitor_ = std::make_unique<GpuMonitor>(stream_.device());
  if (config_.machine.profile && writes()) {
    profile_ = std::make_unique<RunProfile>(stream_, logger_, config_.report.output_dir,
                                            schedule_.total_steps - state_.step, config_.machine.profile_steps);
  }
  report_defaults();
  prepare_reports(resumed);
  Reporter reporter(report_options(), logger_);
  reporter.on_start({.total_steps = schedule_.total_steps,
                     .num_train_epochs = planned_epochs(),
                     .resumed_step = state_.step,
                     .resumed = resumed,
                     .train_batch_size = config_.schedule.per_device_train_batch_size,
                     .eval_steps = *config_.eval.eval_steps,
                     .save_steps = *config_.checkpoint.save_steps});
  if (state_.best_step >= 0) {
    const std::filesystem::path best = checkpoints_.path_of(state_.best_step);
    reporter.set_best(
        {state_.best_metric, state_.best_step, std::filesystem::exists(best) ? best.string() : std::string()});
  }
  if (config_.eval.eval_on_start && state_.step == 0) evaluate(reporter);
  warn_of_unused_gpu();
  try {
    const ExitCode code = train_steps(reporter, stop);
    if (profile_) profile_->finish();
    if (code != ExitCode::kOk) return code;
  } catch (const Error&) {
    save_as_survivor(reporter);
    throw;
  }
  report_graphs();
  if (config_.eval.load_best_model_at_end) restore_best();
  write_together([&](StateReader& reader) {
    replace_model(config_.report.output_dir, [&](const std::filesystem::path& temporary, FileChecksums& checksums) {
      save_model(temporary, adapter_layout(), reader, checksums);
    });
    run_folder_->keep_new();
  });
  if (config_.model.moe_log_expert_load) show_expert_load();
  const std::string early = stops_early()
                                ? fmt::format("no better {} in {} evaluations", config_.eval.metric_for_best_model,
                                              state_.evals_without_improvement)
                                : "";
  reporter.on_end({.reason = early});
  write_training_info(early.empty() ? "completed" : "stopped early: " + early);
  return ExitCode::kOk;
}

double Trainer::planned_epochs() {
  if (!config_.schedule.max_steps) return config_.schedule.num_train_epochs;
  return static_cast<double>(schedule_.total_steps) /
         static_cast<double>(std::max<int64_t>(loader_->steps_in_epoch(0), 1));
}

ExitCode Trainer::train_steps(Reporter& reporter, const StopSignal& stop) {
  bool last = stops_early();
  while (state_.step < schedule_.total_steps && !last) {
    stop.at_step(state_.step + 1);
    train_step(reporter);
    bool better = false;
    last = state_.step == schedule_.total_steps;
    if (!eval_batches_.empty() && config_.eval.eval_strategy != "no" &&
        (last || due(config_.eval.eval_strategy, config_.eval.eval_steps))) {
      better = evaluate(reporter);
    }
    last |= stops_early();
    const bool stopped = on_any_rank(stop.requested()) && !last;
    const bool saves = saves_now(last) || stopped || (better && config_.checkpoint.save_strategy == "best");
    const bool saves_best = better && !saves && config_.eval.load_best_model_at_end;
    if (better) {
      reporter.set_best({state_.best_metric, state_.step,
                         saves || saves_best ? checkpoints_.path_of(state_.step).string() : std::string()});
    }
    if (saves) save_checkpoint(reporter);
    if (saves_best) save_best_weights(reporter);
    if (stopped) {
      const std::string by = stop.requested() ? stop.name() : "a signal to another rank";
      reporter.on_end({.finished = false, .reason = by, .killed = true});
      write_training_info(fmt::format("stopped by {}", by));
      logger_.info("stopped by {}: go on with resume=auto", by);
      return ExitCode::kResumable;
    }
  }
  return ExitCode::kOk;
}

ReportOptions Trainer::report_options() const {
  const RunConfig::Report& report = config_.report;
  ReportOptions options{.output_dir = report.output_dir,
                        .report_to = writes() ? report.report_to : std::vector<std::string>{"none"},
                        .logging_dir = report.logging_dir,
                        .title = report.run_name,
                        .logging_steps = report.logging_steps,
                        .logging_first_step = report.logging_first_step,
                        .metrics_port = writes() ? report.metrics_port : 0,
                        .metrics_host = report.metrics_host,
                        .writes_state = writes()};
  MlflowOptions& mlflow = options.mlflow;
  mlflow.tracking_uri = report.mlflow_tracking_uri;
  mlflow.experiment_name = report.mlflow_experiment_name;
  mlflow.run_id = report.mlflow_run_id;
  if (config_writer_.pairs) mlflow.params = config_writer_.pairs(config_);
  std::string data;
  for (const DatasetConfig& entry : config_.data.datasets) data += (data.empty() ? "" : ", ") + entry.path;
  for (const auto& [name, value] : {std::pair("model", config_.model.model_name_or_path), std::pair("dataset", data)}) {
    if (!report.mlflow_tags.contains(name)) mlflow.tags.emplace_back(name, mlflow_value(value));
  }
  for (const auto& [name, value] : report.mlflow_tags.items()) {
    mlflow.tags.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return options;
}

bool Trainer::due(const std::string& strategy, const std::optional<int64_t>& steps) const {
  if (strategy == "epoch") return std::abs(epoch_ - std::round(epoch_)) < 1e-9;
  return strategy == "steps" && steps && *steps > 0 && state_.step % *steps == 0;
}

bool Trainer::saves_now(bool last) const {
  const RunConfig::Checkpoint& options = config_.checkpoint;
  if (options.save_strategy == "no") return false;
  if (options.save_major_steps > 0 && state_.step % options.save_major_steps == 0) return true;
  if (options.save_strategy == "best") return false;
  return last || due(options.save_strategy, options.save_steps);
}

void Trainer::train_step(Reporter& reporter) {
  const WallClock::time_point begin = WallClock::now();
  if (communicator_) communicator_->control().at_step(state_.step + 1);
  const StepData data = take_data();
  if (profile_) profile_->before_step();
  const StepResult result = kernels_reported_ ? run_step(data) : run_first_step(data);
  if (profile_) profile_->after_step(result.loss.tokens);
  check_numbers(data, result);
  ++state_.step;
  if (!result.nonfinite) ++state_.optimizer_step;
  state_.num_tokens += result.loss.tokens;
  state_.num_supervised_tokens += result.loss.supervised;
  state_.num_samples += data.samples;
  epoch_ = data.epoch;
  watch_routers(result);
  last_loss_ = result.loss.loss;
  reporter.on_step(step_metrics(data, result, seconds_since(begin)));
  report_system(reporter);
}

/// The first step also says which kernels it used.
StepResult Trainer::run_first_step(const StepData& data) {
  const KernelNotes notes(stream_);
  const StepResult result = run_step(data);
  kernels_reported_ = true;
  logger_.info("kernels of {}", notes.text());
  return result;
}

StepResult Trainer::run_step(const StepData& data) {
  const ProfileScope scope(stream_, ProfileKind::kStep, "step", "", state_.step + 1);
  const OptimizerStep optimizer_step{schedule_.at(state_.step), state_.optimizer_step};
  engine_->accumulate(data, state_.step, optimizer_step);
  engine_->start_update(optimizer_step);
  if (state_.step + 1 < schedule_.total_steps) next_data_ = loader_->step(state_.step + 1 - state_.first_data_step);
  return engine_->finish_update();
}

StepData Trainer::take_data() {
  if (!next_data_) return loader_->step(state_.step - state_.first_data_step);
  StepData data = std::move(*next_data_);
  next_data_.reset();
  return data;
}

void Trainer::check_numbers(const StepData& data, const StepResult& result) {
  if (!result.nonfinite) {
    skipped_in_a_row_ = 0;
    return;
  }
  Json samples = Json::array(), places = Json::array();
  for (const MicroBatch& batch : data.micro_batches) {
    for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
      if (batch.cu_seqlens[i] == batch.cu_seqlens[i + 1]) continue;
      const int64_t id = batch.sample_ids[static_cast<size_t>(batch.cu_seqlens[i])];
      samples.push_back(id);
      places.push_back(where_of(training_data().train[loader_->position_of(id)], training_data().train_reports));
    }
  }
  const std::filesystem::path dump =
      std::filesystem::path(config_.report.output_dir) / fmt::format("nonfinite-step-{}.json", state_.step + 1);
  const Json lost = {{"step", state_.step + 1},
                     {"loss", fmt::format("{}", result.loss.loss)},
                     {"grad_norm", fmt::format("{}", result.grad_norm)},
                     {"first_nonfinite_gradient", result.first_nonfinite},
                     {"sample_ids", samples},
                     {"samples", places}};
  if (writes()) write_text_file(dump, lost.dump(2) + "\n");
  const std::string what =
      fmt::format("step {}: loss {} and gradient norm {} are not finite numbers{}", state_.step + 1, result.loss.loss,
                  result.grad_norm,
                  result.first_nonfinite.empty() ? "" : "; the first bad gradient is of " + result.first_nonfinite);
  if (config_.optim.nan_policy == "skip" && ++skipped_in_a_row_ < kMostSkippedSteps) {
    logger_.warning("{}: the step is skipped; its samples are in {}", what, dump.string());
    return;
  }
  throw Error(
      ExitCode::kNumbersLost, what, dump.string(),
      config_.optim.optimizer_in_backward
          ? "layers above may have been stepped; go on from the last checkpoint. Look at the samples listed in "
            "that file, or lower the learning rate"
          : "the parameters were not touched; look at the samples listed in that file, lower the learning rate, "
            "or set nan_policy: skip");
}

void Trainer::write_checkpoint(const Reporter& reporter, StateReader& state) {
  state_.router_watch = router_watch_->state();
  checkpoints_.write(state_.step, [&](const std::filesystem::path& temporary, FileChecksums& checksums) {
    const bool only_model = config_.checkpoint.save_only_model;
    save_model(temporary, only_model ? adapter_layout() : AdapterLayout::kAsTrained, state, checksums);
    if (!only_model) save_training_state(temporary, model_->store(), state_, state, &checksums);
    write_trainer_state(reporter.state(), temporary.string());
  });
  if (run_folder_) run_folder_->keep_new();
  const std::vector<std::string> left_behind = checkpoints_.prune({.newest = state_.step,
                                                                   .best = state_.best_step,
                                                                   .limit = config_.checkpoint.save_total_limit,
                                                                   .major = config_.checkpoint.save_major_steps});
  saved_best_ = state_.best_step;
  checkpoints_.drop_best({saved_best_});
  if (!left_behind.empty()) {
    logger_.info("deleted, since the run went back to before them: {}", fmt::join(left_behind, ", "));
  }
}

void Trainer::save_checkpoint(Reporter& reporter) {
  if (last_saved_ == state_.step) return;
  const WallClock::time_point begin = WallClock::now();
  const std::filesystem::path path = checkpoints_.path_of(state_.step);
  write_together([&](StateReader& state) { write_checkpoint(reporter, state); });
  last_saved_ = state_.step;
  reporter.on_save({.path = path.string(), .step = state_.step, .seconds = seconds_since(begin)});
}

AdapterLayout Trainer::adapter_layout() const {
  const std::string& stated = config_.lora.adapter_layout;
  if (stated == "split") return AdapterLayout::kSplit;
  if (stated == "target_parameters") return AdapterLayout::kTargetParameters;
  if (stated == "kt") return AdapterLayout::kKt;
  if (stated == "sglang") return AdapterLayout::kSglang;
  const auto& lora = model_->lora();
  const bool shared = lora && (lora->expert_lora == ExpertLora::kShared || !lora->target_parameters.empty());
  return shared ? AdapterLayout::kTargetParameters : AdapterLayout::kSplit;
}

void Trainer::save_model(const std::filesystem::path& directory, AdapterLayout layout, StateReader& reader,
                         FileChecksums& checksums) {
  if (const auto& lora = model_->lora()) {
    save_adapter(directory, model_->store(),
                 {.lora = *lora,
                  .layout = layout,
                  .base_model = config_.model.model_name_or_path,
                  .checksums = &checksums,
                  .finite = true,
                  .reader = &reader});
    copy_tokenizer_files(tokenizer_directory(), directory);
    if (!loaded_data_->chat_template.empty()) save_chat_template(directory, loaded_data_->chat_template);
    save_chat_settings(directory, {config_.data.chat_template_kwargs, token_choice(config_.data)});
    if (const Tokenizer* own = tokenizer()) save_token_choice(directory, token_choice(config_.data), *own);
    return;
  }
  copy_model_files(model_->directory(), directory);
  if (!config_.model.tokenizer_name_or_path.empty()) replace_tokenizer_files(tokenizer_directory(), directory);
  if (!loaded_data_->chat_template.empty()) save_chat_template(directory, loaded_data_->chat_template);
  save_chat_settings(directory, {config_.data.chat_template_kwargs, {}});
  if (const Tokenizer* own = tokenizer()) save_token_choice(directory, token_choice(config_.data), *own);
  save_parameters(directory, model_->store(), &model_->checkpoint(), &model_->map(),
                  {.max_shard_size = config_.checkpoint.max_shard_size,
                   .reader = &reader,
                   .checksums = &checksums,
                   .finite = true});
}

void Trainer::dry_run() {
  with_group([this] { return try_one_step(); });
}

ExitCode Trainer::try_one_step() {
  load_model_headers();
  report_model();
  load_data();
  report_data();
  connect();
  make_engine();
  fit_memory();
  load_weights(false);
  engine_->reserve();
  report_defaults();
  const StepData data = loader_->step(0);
  engine_->accumulate(data, 0);
  engine_->measure();  // the first step touches all memory for the first time
  const WallClock::time_point begin = WallClock::now();
  engine_->accumulate(data, 0);
  const StepResult result = engine_->measure();
  const double seconds = seconds_since(begin);
  logger_.info("one step: loss {:.4f}, gradient norm {:.4f}, {:.2f} s, {:.0f} tokens/s, {:.2f} GB {}", result.loss.loss,
               result.grad_norm, seconds, static_cast<double>(result.loss.tokens) / seconds,
               static_cast<double>(used_memory(stream_.device())) / 1e9,
               stream_.device().kind == DeviceKind::kCpu ? "resident at most" : "of the GPU in use");
  const double all = seconds * static_cast<double>(schedule_.total_steps);
  logger_.info("{} steps would take about {}; nothing was written", schedule_.total_steps, human_duration(all));
  return ExitCode::kOk;
}

void Trainer::validate() {
  check_inputs_stay(config_);
  try {
    check_output_dir(config_);
  } catch (const UserError& error) {  // a run that has ended is valid, too
    logger_.info("note: {} ({}); {}", error.message(), error.where(), error.fix());
  }
  load_model_headers();
  report_model();
  load_data();
  report_data();
}

}  // namespace hone
