#include "app/train_verbs.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "app/merge.h"
#include "app/output.h"
#include "app/resolve.h"
#include "app/resolved_yaml.h"
#include "report/console.h"
#include "report/table.h"
#include "report/terminal.h"
#include "train/trainer.h"

namespace hone {

namespace {

/// Overrides that put a checkpoint in the place of what the configuration loads.
std::vector<std::string> checkpoint_overrides(const std::string& checkpoint) {
  if (checkpoint.empty()) return {};
  if (!std::filesystem::is_directory(checkpoint)) {
    throw UserError("there is no such checkpoint", checkpoint, "give a folder that `hone train` wrote");
  }
  const bool adapter = std::filesystem::exists(std::filesystem::path(checkpoint) / "adapter_config.json");
  return {fmt::format("{}={}", adapter ? "adapter_name_or_path" : "model_name_or_path", Json(checkpoint).dump())};
}

Json eval_json(const LossResult& result) {
  return {{"eval_loss", result.loss},
          {"eval_perplexity", std::exp(result.loss)},
          {"eval_mean_token_accuracy", result.mean_token_accuracy},
          {"num_supervised_tokens", result.supervised},
          {"num_tokens", result.tokens}};
}

std::string eval_table(const LossResult& result, bool color) {
  Table table({{"evaluation"}, {"", Align::kRight}});
  table.add_row({"loss", fmt::format("{:.4f}", result.loss)});
  table.add_row({"perplexity", fmt::format("{:.4g}", std::exp(result.loss))});
  table.add_row({"token accuracy", fmt::format("{:.2f} %", 100 * result.mean_token_accuracy)});
  table.add_row({"supervised tokens", fmt::format("{}", result.supervised)});
  table.add_row({"tokens", fmt::format("{}", result.tokens)});
  return table.to_string(color);
}

/// Reads and resolves the configuration and logs its notes. Model and data must be stated.
ResolvedConfig load_run(const RunRequest& request, Logger& logger) {
  ResolvedConfig config = load_config(request.config, request.overrides);
  for (const std::string& note : config.notes) logger.info("{}", note);
  require_keys(config, {"model_name_or_path", "datasets"});
  return config;
}

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

}  // namespace

int run_train(const RunRequest& request, bool dry_run) {
  Console console(Terminal::of(1));
  Logger logger(console, request.log_level);
  const ResolvedConfig config = load_run(request, logger);
  const std::vector<std::string> defaults = default_lines(config);
  if (!defaults.empty()) logger.info("not stated, so the default: {}", fmt::join(defaults, ", "));
  const std::optional<MergeOptions> merge = dry_run ? std::nullopt : merge_of(config.run);
  {
    Trainer trainer(config.run, logger, {resolved_yaml, resolved_pairs});
    if (dry_run) {
      trainer.dry_run();
      return 0;
    }
    if (const ExitCode code = trainer.run(); code != ExitCode::kOk || !merge) return static_cast<int>(code);
  }  // two models need not fit in memory at once
  return run_merge(*merge);
}

int run_eval(const EvalRequest& request) {
  RunRequest run = request.run;
  const std::vector<std::string> checkpoint = checkpoint_overrides(request.checkpoint);
  run.overrides.insert(run.overrides.end(), checkpoint.begin(), checkpoint.end());
  Console console(Terminal::of(request.json ? 2 : 1));  // JSON stands alone on standard output
  Logger logger(console, run.log_level);
  Trainer trainer(load_run(run, logger).run, logger);
  const LossResult result = trainer.evaluate_only();
  print_text(request.json ? eval_json(result).dump(2) + "\n" : eval_table(result, console.color()));
  return std::isfinite(result.loss) ? 0 : static_cast<int>(ExitCode::kNumbersLost);
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
