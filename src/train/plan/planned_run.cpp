#include "train/plan/planned_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "config/run_options.h"
#include "core/base/contains.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "ops/kept_rows/kept_rows.h"
#include "params/frozen_weights.h"
#include "report/humanise.h"
#include "train/plan/experts_device.h"
#include "train/plan/fitting_setting.h"
#include "train/plan/memory_rows.h"
#include "train/plan/offload_choice.h"
#include "train/plan/recompute.h"
#include "train/plan/scored_texts.h"

namespace hone {

namespace {

/// Adds the capacity for evaluations of the run's data with this configuration.
BatchCapacity with_evaluation(BatchCapacity capacity, const DescribedRun& run, const RunConfig& config) {
  const auto include = [&](const BatchCapacity& other) {
    for (int64_t BatchCapacity::*field : {&BatchCapacity::max_tokens, &BatchCapacity::max_documents,
                                          &BatchCapacity::max_supervised, &BatchCapacity::max_seqlen}) {
      capacity.*field = std::max(capacity.*field, other.*field);
    }
  };
  include(run.scored);
  if (run.eval_batches.empty()) return capacity;
  const SampleStore& evaluated = run.data().eval.size() > 0 ? run.data().eval : run.data().train;
  include(Loader(evaluated, eval_loader_options(config)).capacity());
  return capacity;
}

/// Options of an engine for the run's data; `model` is the run's, or the same model with another configuration.
EngineOptions options_for(const DescribedRun& run, const DescribedModel& model, const BatchCapacity& capacity,
                          Device device, bool training) {
  EngineOptions options = engine_options(model, capacity, device);
  options.training = training;
  if (training) options.train_datasets = static_cast<int64_t>(run.data().train_names.size());
  options.eval_datasets = static_cast<int64_t>(run.data().eval_names.size());
  if (run.scored.max_documents > 0) options.eval_datasets = std::max(options.eval_datasets, kScoredAtOnce);
  return options;
}

std::unique_ptr<Engine> make_engine(const DescribedModel& model, const EngineOptions& options, Stream& stream) {
  const bool answers =
      options.training && model.config.generation.generate_samples;  // prompt and answer have up to max_length tokens
  Decoder& decoder = model.model->decoder();
  decoder.prepare(stream, std::max(options.capacity.max_seqlen, answers ? *model.config.data.max_length : 0));
  return std::make_unique<Engine>(decoder, model.model->store(), stream, options);
}

std::unique_ptr<Engine> training_engine(const DescribedRun& run, const RankGroup& group) {
  EngineOptions options =
      options_for(run, run, with_evaluation(run.loader->capacity(), run, run.config), group.context().device(), true);
  options.ranks = group.mesh();
  return make_engine(run, options, group.context().stream);
}

/// Plans a run with other configurations, of which it loads and describes nothing anew but the model.
class OtherPlans {
 public:
  OtherPlans(const DescribedRun& run, RunContext& context, RunUse use) : run_(run), context_(context), use_(use) {}

  MemoryPlan plan(const RunConfig& config, const RecomputePolicy& recompute) {
    auto model = std::make_unique<LoadedModel>(run_.model->config(), run_.model->directory(), config.model.dtype,
                                               expert_format_of(config));
    model->set_trainable(trainable_options(config, context_.device(), context_.ranks.rank, use_));
    const DescribedModel described = describe_model(config, std::move(model));
    described.model->store().allocate_dry(context_.device());
    EngineOptions options = options_for(run_, described, capacity(config), context_.device(), trains());
    options.recompute = recompute;
    return make_engine(described, options, context_.stream)->plan();
  }
  /// The plans of a configuration by what is recomputed.
  std::function<MemoryPlan(const RecomputePolicy&)> of(const RunConfig& config) {
    return [this, &config](const RecomputePolicy& recompute) { return plan(config, recompute); };
  }

 private:
  bool trains() const { return use_ == RunUse::kTraining; }
  const BatchCapacity& capacity(const RunConfig& config) {
    const auto [found, is_new] = capacities_.try_emplace(config.schedule.per_device_train_batch_size);
    if (is_new) {
      const BatchCapacity of_training =
          trains() ? Loader(run_.data().train, train_loader_options(config)).capacity() : BatchCapacity{};
      found->second = with_evaluation(of_training, run_, config);
    }
    return found->second;
  }

  const DescribedRun& run_;
  RunContext& context_;
  RunUse use_;
  std::map<int64_t, BatchCapacity> capacities_;  // by samples of a micro-batch
};

/// The configuration of the run that wrote a checkpoint, or why it is not known.
struct ConfigBefore {
  std::filesystem::path file;
  std::optional<RunConfig> config = {};
  std::string problem = {};
};

ConfigBefore config_before(const std::filesystem::path& checkpoint, const RunContext& context) {
  ConfigBefore before{.file = checkpoint.parent_path() / "config.resolved.yaml", .problem = "the file is not there"};
  if (!std::filesystem::exists(before.file) || !context.config_writer.read) return before;
  try {
    before.config = context.config_writer.read(before.file);
  } catch (const UserError& error) {
    before.problem = error.message();
  }
  return before;
}

/// The place of the experts in the run that wrote a checkpoint, whose bits depend on it; warns if it is not known.
std::optional<ExpertsPlace> place_before(const std::filesystem::path& checkpoint, const RunContext& context) {
  const ConfigBefore before = config_before(checkpoint, context);
  if (before.config && before.config->machine.experts_device != ExpertsOn::kAuto) {
    return experts_place_of(*before.config);
  }
  context.logger.warning(
      "experts_device auto is chosen anew, since {} does not say where the experts of the stopped run were ({}): "
      "elsewhere, sums are rounded differently, and losses differ from what that run would have had in their last bits",
      before.file.string(), before.config ? "it states auto, too" : before.problem);
  return std::nullopt;
}

/// A key for the tokens that a kind of module takes at a time.
struct TileKey {
  const char* name;
  std::optional<int64_t> RunConfig::Model::*stated;
  int64_t MemoryPlan::*planned;
  const char* gradients;  ///< whose bits depend on it
  bool in_rounds;         ///< with expert_parallel_size it has no effect
  /// The tile of so many tokens where backward keeps nothing of the modules.
  int64_t (*bounded)(const DecoderConfig& model, int64_t tokens);
  bool (*has_modules)(const DecoderConfig& model);
};

constexpr TileKey kTileKeys[] = {
    {"moe_token_tile", &RunConfig::Model::moe_token_tile, &MemoryPlan::moe_token_tile, "experts", true,
     [](const DecoderConfig& model, int64_t tokens) {
       return bounded_token_tile(tokens, model.moe.num_experts_per_tok);
     },
     [](const DecoderConfig& model) { return model.num_moe_layers() > 0; }},
    {"mlp_token_tile", &RunConfig::Model::mlp_token_tile, &MemoryPlan::mlp_token_tile, "MLPs", false,
     [](const DecoderConfig& model, int64_t tokens) { return bounded_mlp_tile(tokens, model.widest_mlp()); },
     [](const DecoderConfig& model) { return model.widest_mlp() > 0; }}};

bool takes_tiles(const TileKey& key, const DescribedRun& run) {
  return key.has_modules(run.model->decoder().config()) &&
         !(key.in_rounds && run.config.machine.expert_parallel_size > 1);
}

/// The tile of the run that wrote a checkpoint; warns if it is not known and `may_tile` says that it matters.
std::optional<int64_t> token_tile_before(const TileKey& key, const std::filesystem::path& checkpoint,
                                         const RunContext& context, bool may_tile) {
  const ConfigBefore before = config_before(checkpoint, context);
  if (before.config && before.config->model.*key.stated) return before.config->model.*key.stated;
  const bool spread = before.config && key.in_rounds && before.config->machine.expert_parallel_size > 1;
  if (before.config && !spread) return 0;  // a version without tiles wrote it
  if (may_tile) {
    context.logger.warning(
        "{} auto is chosen anew, since {} does not say which tile the stopped run had ({}): with another "
        "one gradients of weights of {} are rounded differently, and losses differ from what that run would have "
        "had in their last bits",
        key.name, before.file.string(), spread ? "its experts were spread over ranks" : before.problem, key.gradients);
  }
  return std::nullopt;
}

/// A run that continues from `checkpoint` has the tiles of the run that wrote it, on which its bits depend. Collective.
void keep_token_tiles(DescribedRun& run, RankGroup& group, const std::optional<std::filesystem::path>& checkpoint) {
  if (!checkpoint) return;
  for (const TileKey& key : kTileKeys) {
    if (run.config.model.*key.stated || !takes_tiles(key, run)) continue;
    std::string text;
    if (group.context().ranks.rank == 0) {
      const bool may_tile = key.bounded(run.model->decoder().config(), run.loader->capacity().max_tokens) > 0;
      const std::optional<int64_t> before = token_tile_before(key, *checkpoint, group.context(), may_tile);
      if (before) text = std::to_string(*before);
    }
    text = group.first_stated(text);
    if (!text.empty()) run.config.model.*key.stated = std::stoll(text);
  }
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
    if (!choice.fits) throw does_not_fit("the run", choice.plan, limit_, what_fits());
    Logger& logger = group_.context().logger;
    if (schedule.per_device_train_batch_size != wanted_batch) {
      logger.info("per_device_train_batch_size {} and gradient_accumulation_steps {}: {} at once do not fit in memory",
                  schedule.per_device_train_batch_size, schedule.gradient_accumulation_steps, wanted_batch);
    }
    if (!config.model.gradient_checkpointing && choice.level != recompute_levels().front()) {
      logger.info(
          "gradient_checkpointing {}: keeping more of the forward pass would {}", level_setting(choice.level),
          choice.by_time ? "take longer, by the data sheet's rate of copies to host memory" : "not fit in memory");
    }
    if (choice.on_host) {
      logger.info(
          "the CPU recomputes its experts in backward, too: keeping their forward pass would not fit in the host's "
          "memory");
    }
    for (const TileKey& key : kTileKeys) {
      if (takes_tiles(key, run_)) state_token_tile(key, choice.plan.*key.planned);
    }
    return {group_, run_, std::move(engine_), choice.plan, rows_of(choice), available_to(choice)};
  }

 private:
  /// Replaces auto, so that a run that continues this one reads what it was.
  void state_token_tile(const TileKey& key, int64_t tile) {
    std::optional<int64_t>& stated = run_.config.model.*key.stated;
    if (!stated && tile > 0) {
      group_.context().logger.info("{} {}: the rows of all {} tokens of a micro-batch at once would take more memory",
                                   key.name, tile, engine_->options().capacity.max_tokens);
    }
    stated = tile;
  }

  bool halve() {
    if (!halve_batch(run_)) return false;
    engine_.reset();
    engine_ = training_engine(run_, group_);
    return true;
  }

  /// The fastest setting that makes the run fit, found by dry passes, or advice where there is none.
  std::string what_fits() const {
    const RunConfig& config = run_.config;
    OtherPlans others(run_, group_.context(), RunUse::kTraining);
    const bool experts_on_cpu = experts_device_of(config, group_.context().device()).kind == DeviceKind::kCpu;
    const MemoryRoom room{.host_is_apart = limit_.host.has_value(),
                          .int8_experts = experts_on_cpu && experts_fit(run_.model->store(), int8_format()),
                          .fits = [&](const RunConfig& changed,
                                      const std::string& level) { return fits_at(level, limit_, others.of(changed)); },
                          .experts = run_.model->decoder().config().num_moe_layers() > 0,
                          .mlps = run_.model->decoder().config().widest_mlp() > 0};
    const std::optional<std::string> setting = fitting_setting(config, room);
    if (setting) return "it fits with " + *setting;
    const bool shards_more = config.machine.ranks > 1 && config.machine.zero_stage != ZeroStage::kValues;
    return fmt::format(
        "{}{}lower max_length; `hone estimate` shows what fits", shards_more ? "shard more with zero_stage: 3, " : "",
        config.model.finetuning_type == FinetuningType::kFull ? "train with finetuning_type: lora, or " : "");
  }

  std::vector<MemoryRow> rows_of(const FittingLevel& choice) const {
    return memory_rows(choice.plan, precision_of(run_.config), level_note(choice.level, choice.on_host));
  }

  int64_t available_to(const FittingLevel& choice) const { return std::max<int64_t>(limit_.available(choice.plan), 0); }

  void report(const FittingLevel& choice) const {
    Logger& logger = group_.context().logger;
    const MemoryPlan& plan = choice.plan;
    if (!limit_.host && !run_.config.machine.cpu_offload.empty() && plan.host() > 0) {
      logger.warning("cpu_offload saves nothing on a CPU: the offloaded {} use the same memory",
                     human_bytes(plan.host()));
    }
    const std::vector<MemoryRow> rows = rows_of(choice);
    const auto available = static_cast<uint64_t>(available_to(choice));
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

/// Describes the model of a run again, for a configuration that places its weights elsewhere.
void describe_again(DescribedRun& run, RunConfig config, const RunContext& context, RunUse use) {
  auto model = std::make_unique<LoadedModel>(run.model->directory(), config.model.dtype, expert_format_of(config),
                                             config.model.vocab_rows);
  model->set_trainable(trainable_options(config, context.device(), context.ranks.rank, use));
  static_cast<DescribedModel&>(run) = describe_model(std::move(config), std::move(model));
}

/// The first rank chooses while the others wait, so that it measures an idle machine.
ExpertsChoice choice_of_first(RankGroup& group, const std::function<ExpertsChoice()>& choose) {
  const bool first = group.context().ranks.rank == 0;
  const ExpertsChoice own = first ? choose() : ExpertsChoice{};
  if (!group.communicator()) return own;
  const Json json = {{"cpu", own.place.cpu}, {"streamed", own.place.streamed}, {"reason", own.reason}};
  const Json chosen = Json::parse(group.exchange(json.dump()).front());
  return {{.cpu = chosen["cpu"], .streamed = chosen["streamed"]}, chosen["reason"]};
}

}  // namespace

void choose_experts_device(DescribedRun& run, RankGroup& group, RunUse use,
                           const std::optional<std::filesystem::path>& checkpoint) {
  if (run.config.machine.experts_device != ExpertsOn::kAuto) return;
  RunContext& context = group.context();
  const bool training = use == RunUse::kTraining;
  const MemoryLimit limit = group.least_memory_limit();
  OtherPlans plans(run, context, use);
  // An evaluation recomputes nothing.
  const std::string level =
      training ? allowed_levels(run.config.model.gradient_checkpointing).back() : recompute_levels().front();
  const BatchCapacity capacity = training ? run.loader->capacity() : with_evaluation({}, run, run.config);
  const bool asks_before = checkpoint && !computes_experts_on_host(run.config, context.device());  // 8 bits: the CPU
  const auto choose = [&]() -> ExpertsChoice {
    std::optional<ExpertsPlace> before = asks_before ? place_before(*checkpoint, context) : std::nullopt;
    // Whether they are streamed changes no bit.
    if (before && gathers_stepped_values(run.config)) before->streamed = 0;
    if (before) return {*before, "as in the run that this one continues"};
    const auto fits = [&](const RunConfig& other) { return fits_at(level, limit, plans.of(other)); };
    return choose_experts_place(run.config, {.model = *run.model,
                                             .device = context.device(),
                                             .pool = context.pool,
                                             .tokens = capacity.max_tokens,
                                             .training = training,
                                             .fits = fits});
  };
  const ExpertsChoice choice = choice_of_first(group, choose);
  ExpertsDevice chosen = experts_device_in(run.config, choice);
  context.logger.info("{}", chosen.line);
  if (choice.place == ExpertsPlace{}) {
    run.config = std::move(chosen.config);
    return;
  }
  describe_again(run, std::move(chosen.config), context, use);
}

void choose_offload(DescribedRun& run, RankGroup& group, RunUse use) {
  if (!chooses_offload(run.config)) return;
  RunContext& context = group.context();
  const MemoryLimit limit = group.least_memory_limit();
  OtherPlans plans(run, context, use);
  OffloadChoice choice;
  const bool first = context.ranks.rank == 0;
  if (first) {
    choice = choose_offload(run.config, limit, use, [&](const RunConfig& other, const RecomputePolicy& recompute) {
      return plans.plan(other, recompute);
    });
  }
  if (group.communicator()) {
    const Json chosen =
        Json::parse(group.exchange(Json{{"parts", names_of(choice.parts)}, {"line", choice.line}}.dump()).front());
    choice = {choices_called<OffloadPart>(chosen["parts"]), chosen["line"]};
  }
  context.logger.info("{}", choice.line);
  RunConfig config = with_offload(run.config, choice.parts);
  if (choice.parts.empty()) {
    run.config = std::move(config);
    return;
  }
  describe_again(run, std::move(config), context, use);
}

void report_shared_experts(const DescribedRun& run, Logger& logger) {
  const SharedValues* const shared = run.model->store().shared_values();
  if (shared == nullptr || shared->ranks() == 1) return;
  logger.info("experts on the CPU: {} of frozen weights, once for the {} ranks of a host",
              human_bytes(shared->all_bytes()), shared->ranks());
}

PlannedRun plan_run(DescribedRun& run, RankGroup& group, const std::optional<std::filesystem::path>& checkpoint) {
  choose_experts_device(run, group, RunUse::kTraining, checkpoint);
  choose_offload(run, group, RunUse::kTraining);
  keep_token_tiles(run, group, checkpoint);
  group.share(rank_share(run.config, group.context().device(), group.context().ranks.rank));
  if (const int64_t size = run.config.machine.expert_parallel_size; size > 1) {
    const int64_t experts = run.model->decoder().config().moe.num_experts;
    group.context().logger.info("experts: {} of {} on each of {} ranks", experts / size, experts, size);
  }
  report_shared_experts(run, group.context().logger);
  return Planning(run, group).plan();
}

std::unique_ptr<Engine> evaluation_engine(const DescribedRun& run, const RankGroup& group) {
  EngineOptions options = options_for(run, run, with_evaluation({}, run, run.config), group.context().device(), false);
  options.ranks = group.mesh();
  return make_engine(run, options, group.context().stream);
}

void require_evaluation_fits(const DescribedRun& run, RankGroup& group) {
  const MemoryLimit limit = group.least_memory_limit();
  run.model->store().allocate_dry(group.context().device());
  const MemoryPlan plan = evaluation_engine(run, group)->plan();
  if (limit.fits(plan)) return;
  OtherPlans others(run, group.context(), RunUse::kEvaluation);
  RunConfig config = run.config;
  config.schedule.per_device_train_batch_size = 1;  // is not of an evaluation
  const MemoryRoom room{.host_is_apart = limit.host.has_value(),
                        .fits = [&](const RunConfig& changed, const std::string& level) {  // nothing is recomputed
                          return level == recompute_levels().front() &&
                                 limit.fits(others.plan(changed, recompute_policy(level)));
                        }};
  const std::optional<std::string> setting = fitting_setting(config, room);
  throw does_not_fit("evaluation", plan, limit,
                     setting ? "it fits with " + *setting : "lower per_device_eval_batch_size or max_length");
}

EngineOptions engine_options(const DescribedModel& model, const BatchCapacity& capacity, Device device) {
  const RunConfig& config = model.config;
  EngineOptions options;
  options.capacity = capacity;
  if (config.model.layer_input_dtype == LayerInputFormat::kFp8) options.layer_inputs = &fp8_value_format();
  options.moe_token_tile = config.model.moe_token_tile;
  options.mlp_token_tile = config.model.mlp_token_tile;
  options.accumulates = config.schedule.gradient_accumulation_steps > 1;
  options.offload_activations = contains(config.machine.cpu_offload, OffloadPart::kActivations);
  options.weight_fetch = config.machine.weight_fetch;
  options.optimizer = optimizer_options(config);
  options.router_aux_loss_coef = config.model.router_aux_loss_coef.value_or(0);
  options.methods = model.methods;
  options.aux_loss_sum = config.model.aux_loss_reduction == AuxLossReduction::kHfSum;
  options.seed = static_cast<uint64_t>(config.machine.seed);
  options.cuda_graphs = config.machine.cuda_graphs;
  options.libraries = library_memory(device, rank_share(config, device, 0));
  return options;
}

}  // namespace hone
