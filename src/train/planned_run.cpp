#include "train/planned_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "report/humanise.h"
#include "train/memory_rows.h"
#include "train/recompute.h"
#include "train/run_options.h"

namespace hone {

namespace {

/// The note on activations in the memory table.
std::string level_note(const std::string& level) {
  if (level == recompute_levels().front()) return "kept";
  return level == recompute_levels().back() ? "recomputed in backward" : fmt::format("kept, {} recomputed", level);
}

/// Capacity for the training micro-batches, if any, and those for evaluation.
BatchCapacity capacity_of(const DescribedRun& run, bool training) {
  BatchCapacity capacity;
  if (training) capacity = run.loader->capacity();
  if (run.eval_batches.empty()) return capacity;
  const SampleStore& evaluated = run.data().eval.size() > 0 ? run.data().eval : run.data().train;
  const BatchCapacity eval = Loader(evaluated, eval_loader_options(run.config)).capacity();
  for (int64_t BatchCapacity::*field : {&BatchCapacity::max_tokens, &BatchCapacity::max_documents,
                                        &BatchCapacity::max_supervised, &BatchCapacity::max_seqlen}) {
    capacity.*field = std::max(capacity.*field, eval.*field);
  }
  return capacity;
}

std::unique_ptr<Engine> make_engine(const DescribedRun& run, EngineOptions options, Stream& stream) {
  const bool answers =
      options.training && run.config.generation.generate_samples;  // prompt and answer have up to max_length tokens
  options.eval_datasets = static_cast<int64_t>(run.data().eval_names.size());
  Decoder& decoder = run.model->decoder();
  decoder.prepare(stream, std::max(options.capacity.max_seqlen, answers ? *run.config.data.max_length : 0));
  return std::make_unique<Engine>(decoder, run.model->store(), stream, options);
}

std::unique_ptr<Engine> training_engine(const DescribedRun& run, const RankGroup& group) {
  EngineOptions options = engine_options(run, capacity_of(run, true));
  options.ranks = group.mesh();
  options.train_datasets = static_cast<int64_t>(run.data().train_names.size());
  return make_engine(run, options, group.context().stream);
}

/// Creates engines of a run, which is described again until it fits.
class Planning {
 public:
  Planning(DescribedRun& run, RankGroup& group) : run_(run), group_(group), engine_(training_engine(run, group)) {
    group.report_devices();
    run.model->store().allocate_dry(group.context().device());
    limit_ = group.least_memory_limit();
  }

  PlannedRun plan() {
    const RunConfig& config = run_.config;
    const RunConfig::Schedule& schedule = config.schedule;
    const int64_t wanted_batch = schedule.per_device_train_batch_size;
    const std::vector<std::string> levels = allowed_levels(config.model.gradient_checkpointing);
    FittingLevel choice = choose_level(levels, limit_, *engine_);
    while (!choice.fits && config.machine.auto_find_batch_size && halve()) {
      choice = choose_level(levels, limit_, *engine_);
    }
    report(choice);
    if (!choice.fits) {
      warn_of_unused_gpu(config, group_.context());
      throw does_not_fit("the run", choice.plan, limit_, what_fits());
    }
    Logger& logger = group_.context().logger;
    if (schedule.per_device_train_batch_size != wanted_batch) {
      logger.info("per_device_train_batch_size {} and gradient_accumulation_steps {}: {} at once do not fit in memory",
                  schedule.per_device_train_batch_size, schedule.gradient_accumulation_steps, wanted_batch);
    }
    if (config.model.gradient_checkpointing == "auto" && choice.level != recompute_levels().front()) {
      logger.info("gradient_checkpointing {}: keeping more of the forward pass would not fit in memory",
                  level_setting(choice.level));
    }
    return {group_, run_, std::move(engine_), choice.plan};
  }

 private:
  void replace_engine() {
    engine_.reset();
    engine_ = training_engine(run_, group_);
  }

  bool halve() {
    if (!halve_batch(run_)) return false;
    replace_engine();
    return true;
  }

  /// Plans again with another cpu_offload.
  void offload(const std::vector<std::string>& names) {
    run_.config.machine.cpu_offload = names;
    const RunContext& context = group_.context();
    run_.model->store().share_among(rank_share(run_.config, context.device(), context.ranks.rank));
    run_.model->store().allocate_dry(group_.context().device());
    replace_engine();
  }

  bool fits_with(const std::string& level) { return choose_level({level}, limit_, *engine_).fits; }

  /// Returns the cheapest setting that makes the run fit, found by dry passes.
  std::string what_fits() {
    const RunConfig& config = run_.config;
    for (const std::string& level : recompute_levels()) {
      if (fits_with(level)) return fmt::format("it fits with gradient_checkpointing: {}", level_setting(level));
    }
    while (halve()) {
      if (!fits_with(recompute_levels().back())) continue;
      return fmt::format(
          "it fits with gradient_checkpointing: true, per_device_train_batch_size: {} and "
          "gradient_accumulation_steps: {}, which is the same training",
          config.schedule.per_device_train_batch_size, config.schedule.gradient_accumulation_steps);
    }
    if (limit_.host) {
      for (const std::vector<std::string>& names : further_offloads(config)) {
        offload(names);
        if (!fits_with(recompute_levels().back())) continue;
        return fmt::format("it fits with cpu_offload: [{}] and gradient_checkpointing: true", fmt::join(names, ", "));
      }
    }
    const bool shards_more = config.machine.ranks > 1 && config.machine.zero_stage != "3";
    return fmt::format("{}{}lower max_length; `hone estimate` shows what fits",
                       shards_more ? "shard more with zero_stage: 3, " : "",
                       config.model.finetuning_type == "full" ? "train with finetuning_type: lora, or " : "");
  }

  void report(const FittingLevel& choice) const {
    Logger& logger = group_.context().logger;
    const MemoryPlan& plan = choice.plan;
    if (!limit_.host && plan.host() > 0) {
      logger.warning("cpu_offload saves nothing on a CPU: the offloaded {} use the same memory",
                     human_bytes(static_cast<double>(plan.host())));
    }
    const std::vector<MemoryRow> rows = memory_rows(plan, precision_of(run_.config), level_note(choice.level));
    const auto available = static_cast<uint64_t>(std::max<int64_t>(limit_.most, 0));
    const std::string table = memory_table(rows, available, logger.console().color());
    if (const std::string host = host_memory_line(plan, limit_.host.value_or(0)); !host.empty()) {
      logger.info("{}", host);
    }
    if (!choice.fits) return logger.block(table);
    logger.detail_block(table);
    logger.info("{}", memory_line(rows, available));
  }

  DescribedRun& run_;
  RankGroup& group_;
  std::unique_ptr<Engine> engine_;
  MemoryLimit limit_;
};

}  // namespace

PlannedRun plan_run(DescribedRun& run, RankGroup& group) {
  group.share(rank_share(run.config, group.context().device(), group.context().ranks.rank));
  return Planning(run, group).plan();
}

std::unique_ptr<Engine> evaluation_engine(const DescribedRun& run, RunContext& context) {
  EngineOptions options = engine_options(run, capacity_of(run, false));
  options.training = false;
  return make_engine(run, options, context.stream);
}

EngineOptions engine_options(const DescribedModel& model, const BatchCapacity& capacity) {
  const RunConfig& config = model.config;
  EngineOptions options;
  options.capacity = capacity;
  options.accumulates = config.schedule.gradient_accumulation_steps > 1;
  options.offload_activations = offloads_activations(config.machine.cpu_offload);
  options.weight_fetch = fetch_way_of(config.machine.weight_fetch);
  options.optimizer = optimizer_options(config);
  options.router_aux_loss_coef = config.model.router_aux_loss_coef.value_or(0);
  options.methods = model.methods;
  options.aux_loss_sum = config.model.aux_loss_reduction == "hf_sum";
  options.seed = static_cast<uint64_t>(config.machine.seed);
  options.cuda_graphs = graph_use_of(config.machine.cuda_graphs);
  return options;
}

void warn_of_unused_gpu(const RunConfig& config, RunContext& context) {
  if (config.machine.device != "auto" || context.device().kind != DeviceKind::kCpu) return;
  if (const std::string reason = why_no_gpu_is_used(); !reason.empty()) context.logger.warning("{}", reason);
}

}  // namespace hone
