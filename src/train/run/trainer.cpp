#include "train/run/trainer.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/text/json.h"
#include "report/humanise.h"
#include "report/page/page.h"
#include "session/device_facts.h"
#include "train/run/running_run.h"
#include "train/run/tracker_packages.h"

namespace hone {

namespace {

/// Opens the log of each rank: the first rank's is run.log, with a link in logs/.
void open_logs(const RunConfig& config, RunContext& context) {
  Logger& logger = context.logger;
  const std::filesystem::path directory = config.report.output_dir;
  if (context.ranks.size == 1) return logger.open_file((directory / "run.log").string());
  const std::filesystem::path logs = directory / "logs";
  std::error_code error;
  std::filesystem::create_directories(logs, error);
  if (error) throw UserError("the folder cannot be made: " + error.message(), logs.string(), "check its permissions");
  const std::filesystem::path own = logs / fmt::format("rank_{}.log", context.ranks.rank);
  if (!context.writes()) return logger.open_file(own.string());
  logger.open_file((directory / "run.log").string());
  std::filesystem::remove(own, error);
  std::filesystem::create_symlink("../run.log", own, error);  // without symbolic links there is only run.log
}

/// Opens the output folder before anything is written or the model is read.
std::unique_ptr<RunFolder> open_output(const RunConfig& config, RunContext& context) {
  check_inputs_stay(config);
  check_output_dir(config);
  require_tracker_packages(config);
  auto folder = std::make_unique<RunFolder>(config.report.output_dir, context.logger);
  open_logs(config, context);
  return folder;
}

/// Describes the run and logs it. `check` may reject the model before data are read.
DescribedRun described(RunConfig config, RunContext& context,
                       const std::function<void(const DescribedModel&)>& check = {}) {
  DescribedModel model = describe_model(std::move(config), context);
  report_model(model, context.logger);
  if (check) check(model);
  DescribedRun run = describe_run(std::move(model), context);
  run.data_facts = report_data(run, context);
  return run;
}

/// run_plan.json: what is known before the first step, for pages and programs that show the run.
void write_run_plan(const PlannedRun& planned, RunContext& context) {
  const RunConfig& config = planned.described.config;
  Json rows = Json::array();
  for (const MemoryRow& row : planned.memory_rows) {
    if (row.bytes > 0) rows.push_back({{"what", row.what}, {"bytes", row.bytes}, {"note", row.note}});
  }
  const Json plan = {{"total_steps", planned.described.schedule.total_steps},
                     {"device", device_text(context.device())},
                     {"memory",
                      {{"rows", std::move(rows)},
                       {"planned", planned.memory.total()},
                       {"available", planned.memory_available},
                       {"host", planned.memory.host()}}},
                     {"data", *planned.described.data_facts}};
  write_text_file(std::filesystem::path(config.report.output_dir) / "run_plan.json",
                  plan.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

/// report.html, if it is wanted. It is not worth a run: what fails is a warning.
void write_page(const std::filesystem::path& folder, Logger& logger) {
  try {
    write_run_page(folder);
    logger.info("report: {}", (folder / kPageName).string());
  } catch (const std::exception& error) {
    logger.warning("{} is not written: {}", kPageName, error.what());
  }
}

void report_defaults(const RunConfig& config, RunContext& context) {
  const std::string defaults = context.config_writer.defaults ? context.config_writer.defaults(config) : "";
  if (!defaults.empty()) context.logger.debug("not set, so the default: {}", defaults);
}

/// `began`: set when the first step may follow.
ExitCode train_into(RunFolder* folder, RunConfig config, RunContext& context, bool& began) {
  const bool overwrites = config.checkpoint.overwrite_output_dir && config.checkpoint.resume_from_checkpoint.nothing();
  const std::filesystem::path directory = config.report.output_dir;
  std::optional<std::filesystem::path> checkpoint;
  if (folder) checkpoint = find_checkpoint(config, context.logger);
  DescribedRun run = described(std::move(config), context, [&](const DescribedModel& model) {
    if (folder) folder->require_space(least_saved_bytes(model.model->store(), model.config), overwrites);
  });
  RankGroup group(context);
  group.guarded([&] {
    group.check_agreement(run);
    group.require_shared(directory);
    checkpoint = group.from_first(checkpoint);
    if (!folder) return open_logs(run.config, context);
    CheckpointFolder(directory).require_free_names(run.schedule.total_steps);
  });
  PlannedRun planned = group.guarded([&] { return plan_run(run, group, checkpoint); });
  std::optional<BaseCost> base_cost;
  if (!checkpoint) base_cost = group.guarded([&] { return measure_base_cost(planned, false); });
  LoadedRun loaded = group.guarded([&] { return load_planned(planned, checkpoint); });
  loaded.base_cost = std::move(base_cost);
  const StopSignal stop;  // before this line a signal ends the program without any change
  group.guarded([&] {
    if (folder && overwrites) folder->set_aside();
    if (folder && context.config_writer.yaml) {
      write_text_file(directory / "config.resolved.yaml", context.config_writer.yaml(run.config));
    }
    if (folder) write_run_plan(planned, context);
    began = true;
    report_defaults(run.config, context);
  });
  RunningRun running = group.guarded([&] { return RunningRun(loaded, folder); });
  return group.guarded([&] { return running.run(stop); });
}

void try_step(LoadedRun& run) {
  report_defaults(run.config(), run.context());
  const StepData data = run.described().loader->step(0);
  Engine& engine = run.engine();
  engine.accumulate(data, 0);
  engine.measure();  // warm-up: the first step touches all memory for the first time
  const WallClock::time_point begin = WallClock::now();
  engine.accumulate(data, 0);
  const StepResult result = engine.measure();
  const double seconds = seconds_since(begin);
  const Device device = run.context().device();
  Logger& logger = run.context().logger;
  logger.info("one step: loss {}, gradient norm {}, {:.2f} s, {:.0f} tokens/s, {:.2f} GB {}",
              fixed_number(result.loss.loss, 4), fixed_number(result.grad_norm, 4), seconds,
              static_cast<double>(result.loss.tokens) / seconds, static_cast<double>(used_memory(device)) / 1e9,
              device.kind == DeviceKind::kCpu ? "resident at most" : "of the GPU in use");
  const int64_t steps = run.schedule().total_steps;
  logger.info("{} steps would take about {}; nothing was written", steps,
              human_duration(seconds * static_cast<double>(steps)));
}

}  // namespace

ExitCode train(RunConfig config, RunContext& context) {
  // Outlives the error: earlier results are moved back after the error was logged.
  const std::unique_ptr<RunFolder> folder = context.writes() ? open_output(config, context) : nullptr;
  const std::filesystem::path directory = config.report.output_dir;
  const bool wants_page = folder && config.report.html_report;
  bool began = false;
  try {
    const ExitCode code = train_into(folder.get(), std::move(config), context, began);
    if (wants_page) write_page(directory, context.logger);
    return code;
  } catch (const std::exception& error) {
    context.logger.file_only(error.what(), LogLevel::kError);
    if (wants_page && began) write_page(directory, context.logger);
    throw;
  }
}

void dry_run(RunConfig config, RunContext& context) {
  DescribedRun run = described(std::move(config), context);
  RankGroup group(context);
  group.guarded([&] { group.check_agreement(run); });
  PlannedRun planned = group.guarded([&] { return plan_run(run, group); });
  group.guarded([&] { measure_base_cost(planned, true); });
  LoadedRun loaded = group.guarded([&] { return load_planned(planned, {}); });
  group.guarded([&] { try_step(loaded); });
}

void validate(RunConfig config, RunContext& context) {
  check_inputs_stay(config);
  require_tracker_packages(config);
  try {
    check_output_dir(config);
  } catch (const UserError& error) {  // the configuration of a finished run is valid, too
    context.logger.info("note: {} ({}); {}", error.message(), error.where(), error.fix());
  }
  described(std::move(config), context);
}

}  // namespace hone
