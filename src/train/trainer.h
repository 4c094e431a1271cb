// Trainer: a whole run, from its configuration to the saved model.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/thread_pool.h"
#include "optim/schedule.h"
#include "report/metrics_file.h"
#include "report/reporter.h"
#include "train/checkpoint_folder.h"
#include "train/data_setup.h"
#include "train/engine.h"
#include "train/gpu_monitor.h"
#include "train/memory_fit.h"
#include "train/router_watch.h"
#include "train/run_folder.h"
#include "train/run_options.h"
#include "train/run_profile.h"
#include "train/sample_answers.h"
#include "train/stop_signal.h"
#include "train/system_watch.h"
#include "train/trainer_ranks.h"
#include "train/training_state.h"

namespace hone {

class Trainer {
 public:
  /// How a configuration is written down.
  struct ConfigWriter {
    std::function<std::string(const RunConfig&)> yaml;                                        ///< config.resolved.yaml
    std::function<std::vector<std::pair<std::string, std::string>>(const RunConfig&)> pairs;  ///< for trackers
    /// Defaults to tell of, once nothing is left that could be refused; empty: none.
    std::function<std::string(const RunConfig&)> defaults;
  };

  /// `config` may leave what depends on model and data open. Logger and console outlive the trainer. Of several ranks
  /// the first alone writes anything besides its log, and the console of the others should be silent.
  Trainer(RunConfig config, Logger& logger, ConfigWriter config_writer = {}, TrainerRanks ranks = {});
  ~Trainer();

  /// Trains, evaluates and saves. kResumable if a signal stopped it after a checkpoint was written. Throws UserError,
  /// and Error(kNumbersLost) where a loss or gradient is not finite and nan_policy is stop.
  ExitCode run() {
    return with_group([this] { return run_alone_or_with_ranks(); });
  }

  /// Loads, shows the mask of a sample and the memory plan, runs one step without updating, estimates the time; writes
  /// nothing.
  void dry_run();

  /// Checks the model's headers, the data and the output folder, and shows a sample's mask; reads no weight, writes
  /// nothing.
  void validate();

  /// Loads the model and the data's eval part (or, without one, `datasets`), or its first `max_samples`, for
  /// evaluate(): neither gradients nor optimizer state.
  void load_for_evaluation(std::optional<int64_t> max_samples = {});
  /// The loss with the adapters that are attached now. What it needs besides the model is free again afterwards.
  LossResult evaluate_loaded();
  /// What was loaded, for generating beside it.
  LoadedModel& model() { return *model_; }
  const Tokenizer* tokenizer() const { return loaded_data_->tokenizer ? &*loaded_data_->tokenizer : nullptr; }
  Stream& stream() { return stream_; }

  /// The configuration with everything filled in, after the model and the data are known.
  const RunConfig& config() const { return config_; }

 private:
  ExitCode run_alone_or_with_ranks();
  ExitCode try_one_step();
  /// Where `work` fails on this rank, the others are told why.
  ExitCode with_group(const std::function<ExitCode()>& work);
  bool writes() const { return ranks_.rank == 0; }
  void connect();
  void check_ranks_agree();
  std::optional<std::filesystem::path> from_first_rank(std::optional<std::filesystem::path> path);
  /// Whether it is so on some rank, for all of them.
  bool on_any_rank(bool mine);
  void open_logs();
  MemoryLimit least_memory_limit();
  /// `write` on the first rank, with all values and state of all ranks at hand; the others wait.
  void write_together(const std::function<void(StateReader&)>& write);
  void load_model_headers();
  void load_data();
  void report_defaults();
  void report_system(Reporter& reporter);
  /// The model's, or that of tokenizer_name_or_path.
  std::filesystem::path tokenizer_directory() const;
  void make_loader();
  void fill_in_steps(std::optional<int64_t>& per_epoch, std::optional<int64_t>& steps);
  void make_engine(bool training = true);
  void fit_memory();
  bool fits(const MemoryLimit& limit, MemoryPlan& plan);
  bool halve_batch();
  void offload(const std::vector<std::string>& names);
  std::string what_fits(const MemoryLimit& limit);
  void load_weights(bool inference);
  void report_lora(const LoraOptions& lora);
  void report_model();
  void report_data();
  const TrainingData& training_data() const { return loaded_data_->data; }
  void report_devices();
  void warn_of_unused_gpu();
  void report_memory(const MemoryPlan& plan, const MemoryLimit& limit, bool fits);
  /// Takes the folder, before anything is written or the model is read. What the run goes on from, on the first rank.
  std::optional<std::filesystem::path> open_output();
  std::optional<std::filesystem::path> find_checkpoint();
  /// Goes on from it, or where it turns out damaged and resume is auto, from the next older one. Whether it resumed.
  bool resume_from(std::optional<std::filesystem::path> checkpoint);
  /// What is damaged; "" if the run goes on from it.
  std::string resume(const std::filesystem::path& checkpoint);
  void load_checkpoint(const std::filesystem::path& checkpoint, ReadLedger& ledger);
  std::string damage_of(const std::filesystem::path& checkpoint, ReadLedger& ledger);
  void load_position(const std::filesystem::path& checkpoint, ReadLedger& ledger);
  void check_same_data(const std::filesystem::path& checkpoint, const Json& now);

  ExitCode train_steps(Reporter& reporter, const StopSignal& stop);
  void train_step(Reporter& reporter);
  double planned_epochs();
  StepResult run_first_step(const StepData& data);
  StepResult run_step(const StepData& data);
  StepData take_data();
  StepMetrics step_metrics(const StepData& data, const StepResult& result, double seconds) const;
  void check_numbers(const StepData& data, const StepResult& result);
  /// Whether it is the best so far.
  bool evaluate(Reporter& reporter);
  static std::vector<NamedValue> dataset_losses(const LossResult& result, const std::vector<std::string>& names);
  void add_routers(const StepResult& result, StepMetrics& metrics) const;
  void prepare_reports(bool resumed);
  void watch_routers(const StepResult& result);
  void show_expert_load();
  void prepare_samples(bool resumed);
  void answer_samples(EvalMetrics& metrics);
  void write_training_info(const std::string& status);
  ReportOptions report_options() const;
  void report_graphs();
  bool due(const std::string& strategy, const std::optional<int64_t>& steps) const;
  bool saves_now(bool last) const;
  bool stops_early() const;
  void save_checkpoint(Reporter& reporter);
  /// Of a step that has no checkpoint, for load_best_model_at_end.
  void save_best_weights(Reporter& reporter);
  void write_checkpoint(const Reporter& reporter, StateReader& state);
  /// Where another rank is lost: the lowest one that is left saves what all of them have.
  void save_as_survivor(Reporter& reporter);
  /// The layout of adapters in the final folder.
  AdapterLayout adapter_layout() const;
  void save_model(const std::filesystem::path& directory, AdapterLayout layout, StateReader& reader,
                  FileChecksums& checksums);
  void restore_best();

  RunConfig config_;
  TrainingMethods methods_;
  Logger& logger_;
  ConfigWriter config_writer_;
  std::optional<SystemWatch> system_watch_;  ///< of the first rank of each host, where MLflow is to hear of it
  bool system_watch_asked_ = false;          ///< whether it is wanted has been found out
  TrainerRanks ranks_;
  ThreadPool pool_;
  Stream stream_;
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<Communicator> communicator_;  // null for one rank; its collectives use the model's memory
  std::optional<LoadedData> loaded_data_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Engine> engine_;
  std::string recompute_level_;
  int64_t planned_bytes_ = 0;         // of the memory plan
  std::optional<double> peak_flops_;  // of the device, for mfu
  std::unique_ptr<GpuMonitor> gpu_monitor_;
  std::unique_ptr<RunProfile> profile_;
  bool kernels_reported_ = false;
  std::vector<MicroBatch> eval_batches_;
  std::optional<StepData> next_data_;  // of the step after this one, prepared while the device works
  std::unique_ptr<RouterWatch> router_watch_;
  std::unique_ptr<SampleAnswers> answers_;  // with generate_samples
  std::optional<MetricsFile> generations_;
  CheckpointFolder checkpoints_;
  std::unique_ptr<RunFolder> run_folder_;  // on the first rank, of a run that writes
  Schedule schedule_;
  RunState state_;
  double epoch_ = 0;
  int64_t skipped_in_a_row_ = 0;
  int64_t last_saved_ = -1;
  int64_t saved_best_ = -1;  // the best step that the newest checkpoint knows
  int64_t shown_load_ = -1;  // the step at which the experts' load was shown
  double start_time_ = 0;    // seconds since 1970
  std::optional<double> last_loss_, last_eval_loss_;
};

}  // namespace hone
