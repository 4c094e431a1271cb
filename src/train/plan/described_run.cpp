#include "train/plan/described_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "config/run_options.h"
#include "config/schedule_options.h"
#include "core/base/error.h"
#include "params/adapter_kind.h"
#include "params/adapter_targets.h"
#include "report/table.h"
#include "session/model_path.h"
#include "train/plan/fitting_setting.h"
#include "train/plan/run_vocabulary.h"
#include "train/plan/run_warnings.h"

namespace hone {

namespace {

/// Logs one line for each rank and alpha of the adapters.
void report_lora(const LoraOptions& lora, ParameterStore& store, Logger& logger) {
  std::map<std::pair<int64_t, double>, int64_t> adapters;
  for (const Parameter& parameter : std::as_const(store).all()) {
    for (const auto& attached : parameter.adapters()) ++adapters[{attached->scale().rank, attached->scale().alpha}];
  }
  if (lora.exclusions_may_miss) {
    for (const auto& [entry, hint] : unmatched_exclusions(store, lora)) {
      logger.warning("lora_exclude_modules: '{}' matches nothing in this model.{}", entry, hint);
    }
  }
  constexpr size_t kShown = 3;
  size_t shown = 0;
  for (const auto& [scale, count] : adapters) {
    logger.log(shown++ < kShown ? LogLevel::kInfo : LogLevel::kDebug,
               fmt::format("{} r {} alpha {} scaling {:.4g}: {} adapters", adapter_kind(lora).name, scale.first,
                           scale.second, lora.scaling(scale.second, scale.first), count));
  }
  if (adapters.size() > kShown) logger.info("and {} more ranks and alphas of adapters", adapters.size() - kShown);
}

void make_batches(DescribedRun& run) {
  run.loader = std::make_unique<Loader>(run.data().train, train_loader_options(run.config));
  if (run.data().eval.size() > 0) {
    run.eval_batches = Loader(run.data().eval, eval_loader_options(run.config)).all_in_order();
  }
}

/// Replaces steps that are unset, or given as a share of the run or a multiple of an epoch, by absolute numbers.
void fill_in_steps(DescribedRun& run, int64_t total) {
  RunConfig& config = run.config;
  const auto share_of_all = [&](std::optional<double>& ratio, auto& steps) {
    if (ratio) steps = static_cast<int64_t>(std::ceil(static_cast<double>(total) * *ratio));
    ratio.reset();
  };
  share_of_all(config.report.logging_steps_ratio, config.report.logging_steps);
  share_of_all(config.checkpoint.save_steps_ratio, config.checkpoint.save_steps);
  share_of_all(config.eval.eval_steps_ratio, config.eval.eval_steps);
  const auto part_of_epoch = [&](std::optional<int64_t>& per_epoch, std::optional<int64_t>& steps) {
    const int64_t times = per_epoch.value_or(1);
    if (!steps) steps = (run.loader->steps_in_epoch(0) + times - 1) / times;
    per_epoch.reset();
  };
  part_of_epoch(config.checkpoint.saves_per_epoch, config.checkpoint.save_steps);
  part_of_epoch(config.eval.evals_per_epoch, config.eval.eval_steps);
}

}  // namespace

std::filesystem::path DescribedModel::tokenizer_directory() const {
  return hone::tokenizer_directory(config, model->directory());
}

AdapterLayout adapter_layout(const DescribedModel& model) {
  const AdapterLayout stated = model.config.lora.adapter_layout;
  if (stated != AdapterLayout::kAsTrained) return stated;
  const auto& lora = model.model->lora();
  const bool shared = lora && (lora->expert_lora == ExpertLora::kShared || !lora->target_parameters.empty());
  return shared ? AdapterLayout::kTargetParameters : AdapterLayout::kSplit;
}

DescribedModel describe_model(RunConfig config, std::unique_ptr<LoadedModel> model) {
  const DecoderConfig& decoder = model->decoder().config();
  config.model.router_aux_loss_coef = aux_loss_coefficient(config, decoder);
  if (const auto& lora = model->lora()) {
    config.lora.r = lora->r;
    config.lora.alpha = lora->alpha;
    config.lora.dropout = lora->dropout;
  }
  const TrainingMethods methods = training_methods(config, decoder);
  return {std::move(config), std::move(model), methods};
}

DescribedModel describe_model(RunConfig config, RunContext& context, RunUse use) {
  const std::filesystem::path directory = resolve_model_path(config.model.model_name_or_path);
  check_expert_format(expert_format_of(config), experts_device_of(config, context.device()), "device");
  check_fp8(config.model.fp8, context.stream);
  optimizer_options(config).require(context.device(), "optim");
  for (const std::string& note : describe_vocabulary(config, HfConfig::read(directory), directory)) {
    context.logger.info("{}", note);
  }
  auto model =
      std::make_unique<LoadedModel>(directory, config.model.dtype, expert_format_of(config), config.model.vocab_rows);
  if (const std::vector<std::string> unread = model->config().unread(); !unread.empty()) {
    context.logger.warning(
        "{} has fields that Hone does not know: {}. If one of them changes what the model computes, "
        "the losses are wrong: compare one with transformers",
        model->config().file(), fmt::join(unread, ", "));
  }
  for (const std::string& difference : model->differences()) context.logger.warning("{}", difference);
  const TrainableOptions trainable = trainable_options(config, context.device(), context.ranks.rank, use);
  HONE_ASSERT(trainable.ranks.ranks == context.ranks.size, "the configuration is another number of ranks'");
  model->set_trainable(trainable);
  for (const std::string& warning : model->adapter_warnings()) context.logger.warning("{}", warning);
  const DecoderConfig& decoder = model->decoder().config();
  if (!config.data.max_length) {
    config.data.max_length = default_max_length(decoder);
    context.logger.info("max_length {} (the model allows {})", *config.data.max_length,
                        decoder.rope.max_position_embeddings);
  }
  DescribedModel described = describe_model(std::move(config), std::move(model));
  if (const auto& lora = described.model->lora()) {
    require_layout(described.model->store(), adapter_layout(described));
    report_lora(*lora, described.model->store(), context.logger);
  }
  return described;
}

DescribedRun describe_run(DescribedModel model, RunContext& context) {
  auto loaded = std::make_unique<const LoadedData>(load_data(model.config, model.tokenizer_directory(),
                                                             model.model->decoder().config().vocab_size, context.pool,
                                                             context.logger));
  DescribedRun run{std::move(model), std::move(loaded), {}, {}, {}};
  make_batches(run);
  const RunConfig::Schedule& stated = run.config.schedule;
  const int64_t total = stated.max_steps ? *stated.max_steps : run.loader->steps_in_epochs(stated.num_train_epochs);
  run.schedule = schedule_of(stated, total);
  fill_in_steps(run, total);
  return run;
}

DescribedRun describe_without_data(DescribedModel model) {
  auto loaded = std::make_unique<const LoadedData>(
      load_no_data(model.config, model.tokenizer_directory(), model.model->decoder().config().vocab_size));
  return {std::move(model), std::move(loaded), {}, {}, {}};
}

bool halve_batch(DescribedRun& run) {
  if (!halve_batch(run.config)) return false;
  make_batches(run);
  return true;
}

void require_something_trained(const DescribedModel& model) {
  const auto& all = model.model->store().all();
  if (std::any_of(all.begin(), all.end(), [](const Parameter& parameter) { return parameter.trainable(); })) return;
  throw UserError("nothing is trained: every parameter is frozen", "freeze_parameters",
                  "unfreeze some with trainable_parameters");
}

void report_model(const DescribedModel& model, Logger& logger) {
  std::vector<ParameterGroupRow> rows;
  int64_t trainable = 0, all = 0;
  for (const Parameter& parameter : model.model->store().all()) {
    const std::string group(group_of(parameter.spec().kind));
    auto row = std::find_if(rows.begin(), rows.end(), [&](const ParameterGroupRow& r) { return r.group == group; });
    if (row == rows.end()) row = rows.insert(rows.end(), {group});
    const int64_t n = parameter.shape().numel();
    ++row->tensors;
    row->parameters += n;
    if (parameter.trainable()) row->trainable_parameters += n;
    all += n;
    if (parameter.trainable()) trainable += n;
  }
  logger.detail_block(parameter_table(rows, logger.console().color()));
  logger.info("{}", trainable_summary(trainable, all));
  require_something_trained(model);
}

JsonValue report_data(const DescribedRun& run, RunContext& context) {
  const int64_t max_length = *run.config.data.max_length;
  JsonValue facts = log_data_report(run.data(), max_length, context.logger);
  log_proof_sheet(*run.loaded, run.tokenizer_directory(), std::nullopt, context.logger);
  const RunConfig::Schedule& schedule = run.config.schedule;
  const int ranks = context.ranks.size;
  context.logger.info("{} optimizer steps, {} an epoch; {} × {}{} sequences of up to {} tokens a step",
                      run.schedule.total_steps, run.loader->steps_in_epoch(0), schedule.per_device_train_batch_size,
                      schedule.gradient_accumulation_steps,
                      ranks > 1 ? fmt::format(" × {} ranks = {}", ranks, schedule.global_batch_size) : "", max_length);
  for (const std::string& warning : doubtful_settings(run)) context.logger.warning("{}", warning);
  return facts;
}

}  // namespace hone
