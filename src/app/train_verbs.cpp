#include "app/train_verbs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "app/launched_ranks.h"
#include "app/merge.h"
#include "app/output.h"
#include "app/resolved_yaml.h"
#include "report/console.h"
#include "train/trainer.h"

namespace hone {

ResolvedConfig load_run(const RunRequest& request, Logger& logger, int64_t ranks) {
  ResolvedConfig config = load_config(request.config, request.overrides, ranks);
  for (const std::string& note : config.notes) logger.info("{}", note);
  require_keys(config, {"model_name_or_path", "datasets"});
  return config;
}

namespace {

/// What merge_after_training asks for. A folder that cannot be taken is refused before the run, not after it.
std::optional<MergeOptions> merge_of(const RunConfig& run) {
  if (!run.checkpoint.merge_after_training || run.model.finetuning_type != "lora") return std::nullopt;
  const std::string& stated = run.checkpoint.export_dir;
  MergeOptions options{
      .model = run.model.model_name_or_path,
      .adapter = run.report.output_dir,
      .output = stated.empty() ? (std::filesystem::path(run.report.output_dir) / "merged").string() : stated,
      .dtype = {},
      .tolerance = {},
      .threads = static_cast<int>(run.machine.threads.value_or(0)),
      .force = run.checkpoint.overwrite_output_dir || run.checkpoint.resume_from_checkpoint != "false"};
  require_free_folder(options.output, options.force);
  return options;
}

int train(const RunRequest& request, bool dry_run, LaunchedRanks& launched) {
  const TrainerRanks ranks = launched.for_trainer();
  Console console(terminal_of(ranks));
  Logger logger(console, request.log_level);
  if (ranks.size > 1) logger.info("{}", launched.describe());
  const ResolvedConfig config = load_run(request, logger, ranks.size);
  launched.set_timeout(static_cast<double>(config.run.machine.ddp_timeout));
  const std::vector<std::string> defaults = default_lines(config);
  if (!defaults.empty()) logger.info("not stated, so the default: {}", fmt::join(defaults, ", "));
  const std::optional<MergeOptions> merge = dry_run ? std::nullopt : merge_of(config.run);
  {
    Trainer trainer(config.run, logger, {resolved_yaml, resolved_pairs}, ranks);
    if (dry_run) {
      trainer.dry_run();
      return 0;
    }
    if (const ExitCode code = trainer.run(); code != ExitCode::kOk || !merge) return static_cast<int>(code);
  }  // two models need not fit in memory at once
  if (ranks.rank > 0) return 0;
  return run_merge(*merge);
}

}  // namespace

int run_train(const RunRequest& request, bool dry_run) {
  LaunchedRanks ranks;
  return ranks.run([&] { return train(request, dry_run, ranks); });
}

int run_validate(const RunRequest& request) {
  Console console(Terminal::of(1));
  Logger logger(console, request.log_level);
  Trainer trainer(load_run(request, logger).run, logger);
  trainer.validate();
  logger.info("valid: nothing was written; `hone train` runs it");
  return 0;
}

}  // namespace hone
