#include "train/run/run_saver.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>

#include "config/run_options.h"
#include "core/base/error.h"
#include "core/files/folder_lock.h"
#include "report/humanise.h"
#include "train/save/model_card.h"
#include "train/save/saved_chat.h"
#include "train/save/saved_tokenizer.h"

namespace hone {

RunSaver::RunSaver(LoadedRun& run, RunFolder* folder, const RunObservers& observers)
    : run_(run),
      folder_(folder),
      observers_(observers),
      checkpoints_(run.config().report.output_dir),
      unevaluated_(run.resumed && run.state.evaluation_due ? run.state.step : -1),
      last_saved_(run.resumed && (unevaluated_ < 0 || run.config().checkpoint.save_only_model) ? run.state.step : -1),
      saved_best_(run.resumed ? run.state.best_step : -1) {}

bool RunSaver::is_due(bool last) const {
  const RunConfig::Checkpoint& options = run_.config().checkpoint;
  if (options.save_strategy == Cadence::kNo) return false;
  if (options.save_major_steps > 0 && run_.state.step % options.save_major_steps == 0) return true;
  if (options.save_strategy == Cadence::kBest) return false;
  return last || run_.is_due(options.save_strategy, options.save_steps);
}

void RunSaver::after_step(bool last, bool stopped, bool better) {
  const RunConfig& config = run_.config();
  // The checkpoint that the run goes on from is written again, with the evaluation; never its weights alone.
  const bool again = run_.state.step == unevaluated_;
  const bool saves = is_due(last) || stopped || (better && config.checkpoint.save_strategy == Cadence::kBest) ||
                     (again && config.checkpoint.save_strategy != Cadence::kNo);
  const bool saves_best = better && !saves && !again && config.eval.load_best_model_at_end;
  if (better) {
    tell(observers_, &RunObserver::best_found,
         BestModel{run_.state.best_metric, run_.state.step, saves || saves_best ? path().string() : std::string()});
  }
  if (saves) save_checkpoint();
  if (saves_best) save_best_weights();
}

void RunSaver::save_checkpoint() {
  if (last_saved_ == run_.state.step) return;
  const WallClock::time_point begin = WallClock::now();
  run_.group().write_together(checkpoint_files(), [&](const WriteFiles& write) { write_checkpoint(write); });
  last_saved_ = run_.state.step;
  tell(observers_, &RunObserver::saved,
       SaveReport{.path = path().string(), .step = run_.state.step, .seconds = seconds_since(begin)});
}

void RunSaver::save_best_weights() {
  const WallClock::time_point begin = WallClock::now();
  const AdapterLayout layout = adapter_layout(run_.described());
  const std::vector<TensorFile> files = model_files(layout);
  run_.group().write_together(files, [&](const WriteFiles& write) {
    checkpoints_.write_best(run_.state.step, [&](const std::filesystem::path& temporary, FileChecksums& checksums) {
      tell(observers_, &RunObserver::saving, temporary, run_.state);
      write_companions(temporary, layout, files);
      write(temporary, checksums);
    });
    folder_->keep_new();
    checkpoints_.drop_best({run_.state.step, saved_best_});
  });
  tell(observers_, &RunObserver::saved,
       SaveReport{
           .path = path().string() + " (the best weights)", .step = run_.state.step, .seconds = seconds_since(begin)});
}

AdapterLayout RunSaver::checkpoint_layout() const {
  return run_.config().checkpoint.save_only_model ? adapter_layout(run_.described()) : AdapterLayout::kAsTrained;
}

std::vector<TensorFile> RunSaver::checkpoint_files() const {
  std::vector<TensorFile> files = model_files(checkpoint_layout());
  if (!run_.config().checkpoint.save_only_model) files.push_back(training_state_file(run_.store()));
  return files;
}

void RunSaver::write_checkpoint(const WriteFiles& write) {
  const RunConfig::Checkpoint& options = run_.config().checkpoint;
  RunState& state = run_.state;
  checkpoints_.write(state.step, [&](const std::filesystem::path& temporary, FileChecksums& checksums) {
    tell(observers_, &RunObserver::saving, temporary, state);
    const AdapterLayout layout = checkpoint_layout();
    write_companions(temporary, layout, model_files(layout));
    if (!options.save_only_model) write_run_state(temporary, state);
    write(temporary, checksums);
  });
  if (folder_) folder_->keep_new();
  const std::vector<std::string> left_behind = checkpoints_.prune({.newest = state.step,
                                                                   .best = state.best_step,
                                                                   .limit = options.save_total_limit,
                                                                   .major = options.save_major_steps});
  saved_best_ = state.best_step;
  checkpoints_.drop_best({saved_best_});
  if (!left_behind.empty()) {
    run_.logger().info("deleted checkpoints of later steps, since the run went back: {}", fmt::join(left_behind, ", "));
  }
}

AdapterSaveOptions RunSaver::adapter_options(AdapterLayout layout) const {
  return {.lora = *run_.model().lora(),
          .layout = layout,
          .base_model = run_.config().model.model_name_or_path,
          .finite = true};
}

std::vector<TensorFile> RunSaver::model_files(AdapterLayout layout) const {
  const LoadedModel& model = run_.model();
  if (model.lora()) return adapter_files(run_.store(), adapter_options(layout));
  return parameter_files(run_.store(), &model.checkpoint(), &model.map(),
                         {.max_shard_size = run_.config().checkpoint.max_shard_size, .finite = true});
}

void RunSaver::write_companions(const std::filesystem::path& directory, AdapterLayout layout,
                                std::span<const TensorFile> files) const {
  const DescribedRun& described = run_.described();
  const RunConfig& config = described.config;
  const LoadedModel& model = run_.model();
  const bool lora = model.lora().has_value();
  if (lora) {
    write_adapter_config(directory, run_.store(), adapter_options(layout));
    copy_tokenizer_files(described.tokenizer_directory(), directory);
  } else {
    copy_model_files(model.directory(), directory);
    if (!config.model.tokenizer_name_or_path.empty()) {
      replace_tokenizer_files(described.tokenizer_directory(), directory);
    }
  }
  if (const int64_t rows = model.added_vocab_rows(); rows > 0 && !lora) write_config_vocab_size(directory, rows);
  if (const Tokenizer* tokenizer = described.tokenizer(); tokenizer != nullptr && !new_tokens(config).empty()) {
    save_added_tokens(directory, *tokenizer);
  }
  if (!described.loaded->chat_template.empty()) save_chat_template(directory, described.loaded->chat_template);
  const TokenChoice tokens = token_choice(config.data);
  save_chat_settings(
      directory, {config.data.chat_template_kwargs, lora ? tokens : TokenChoice{}, config.data.split_special_tokens});
  if (const Tokenizer* tokenizer = described.tokenizer()) save_token_choice(directory, tokens, *tokenizer);
  if (!lora) write_index(directory, files);
  write_run_card(directory, described, run_.state, lora ? std::optional(layout) : std::nullopt);
}

void RunSaver::restore_best() {
  const RunState& state = run_.state;
  Logger& logger = run_.logger();
  if (state.best_step < 0 || state.best_step == state.step) return;
  const std::filesystem::path best = checkpoints_.path_of(state.best_step);
  if (run_.group().on_any(!std::filesystem::exists(best))) {
    logger.warning("the best weights (step {}) are not in {}: saving those of the last step", state.best_step,
                   best.string());
    return;
  }
  run_.context().stream.synchronize();
  read_saved_weights(best, run_.model(), run_.context().pool);
  logger.info("saved the best model (step {}, {} {})", state.best_step, run_.config().eval.metric_for_best_model,
              fixed_number(state.best_metric, 4));
}

void RunSaver::save_final_model() {
  const AdapterLayout layout = adapter_layout(run_.described());
  const std::vector<TensorFile> files = model_files(layout);
  run_.group().write_together(files, [&](const WriteFiles& write) {
    replace_model(run_.config().report.output_dir,
                  [&](const std::filesystem::path& temporary, FileChecksums& checksums) {
                    write_companions(temporary, layout, files);
                    write(temporary, checksums);
                  });
    folder_->keep_new();
  });
}

void RunSaver::save_as_survivor() {
  const int64_t step = run_.state.step;
  Logger& logger = run_.logger();
  if (run_.config().checkpoint.save_strategy == Cadence::kNo || last_saved_ == step || step == 0) return;
  if (!run_.group().is_lowest_survivor()) return;
  if (!run_.store().state_is_whole()) {
    const std::vector<int64_t> steps = checkpoints_.steps();
    logger.error(
        "the lost rank had a part of the training state, so step {} cannot be saved; the newest checkpoint is {}", step,
        steps.empty() ? "none" : checkpoints_.path_of(steps.back()).string());
    return;
  }
  // The current step is not included: its update waits for the reductions of all ranks.
  try {
    run_.context().stream.synchronize();
  } catch (const Error&) {  // from a failed collective, the reason for this call
  }
  try {
    constexpr std::chrono::seconds kPatience{10};  // the first rank's connection may end before it releases its lock
    const auto lock = folder_ ? nullptr : FolderLock::take_within(run_.config().report.output_dir, kPatience);
    const std::vector<TensorFile> files = checkpoint_files();
    write_checkpoint([&](const std::filesystem::path& directory, FileChecksums& checksums) {
      write_files(directory, files, &checksums, &run_.context().pool);
    });
    logger.warning("step {} was saved before the end: resume with resume=auto", step);
  } catch (const Error& error) {  // report the cause of the group's end first: often the same full disk
    logger.error("step {} cannot be saved: {}", step, reason_of(error));
  }
}

}  // namespace hone
