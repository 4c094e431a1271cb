// The trainer before its first step: model, data, memory.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "core/untrusted_json.h"
#include "params/adapter_kind.h"
#include "params/frozen_weights.h"
#include "report/table.h"
#include "session/device_facts.h"
#include "train/data_identity.h"
#include "train/run_options.h"
#include "train/schedule_options.h"
#include "train/trainer.h"

namespace hone {

Trainer::Trainer(RunConfig config, Logger& logger, ConfigWriter config_writer, TrainerRanks ranks)
    : config_(std::move(config)),
      logger_(logger),
      config_writer_(std::move(config_writer)),
      ranks_(std::move(ranks)),
      pool_(rank_threads(static_cast<int>(config_.machine.threads.value_or(0)), ranks_.cores_shared_by)),
      stream_(choose_rank_device(config_.machine.device, ranks_.local_rank, ranks_.local_size, ranks_.size), pool_),
      checkpoints_(config_.report.output_dir) {}

Trainer::~Trainer() = default;

void Trainer::load_model_headers() {
  const std::filesystem::path directory = resolve_model_path(config_.model.model_name_or_path);
  check_expert_format(expert_format_of(config_), stream_.device(), "device");
  optimizer_options(config_).require(stream_.device(), "optim");
  model_ = std::make_unique<LoadedModel>(directory, dtype_of(config_), expert_format_of(config_));
  TrainableOptions trainable = trainable_options(config_);
  HONE_ASSERT(trainable.ranks.ranks == ranks_.size, "the configuration is another number of ranks'");
  trainable.ranks.rank = ranks_.rank;
  model_->set_trainable(trainable);
  const DecoderConfig& decoder = model_->decoder().config();
  if (!config_.data.max_length) {
    config_.data.max_length = default_max_length(decoder);
    logger_.info("max_length {} (the model allows {})", *config_.data.max_length, decoder.rope.max_position_embeddings);
  }
  config_.model.router_aux_loss_coef = aux_loss_coefficient(config_, decoder);
  methods_ = training_methods(config_, decoder);
  if (const auto& lora = model_->lora()) {
    config_.lora.r = lora->r;
    config_.lora.alpha = lora->alpha;
    config_.lora.dropout = lora->dropout;
    require_layout(model_->store(), adapter_layout());
    report_lora(*lora);
  }
}

/// One line for each rank and alpha that adapters have.
void Trainer::report_lora(const LoraOptions& lora) {
  std::map<std::pair<int64_t, double>, int64_t> adapters;
  for (const Parameter& parameter : model_->store().all()) {
    for (const auto& attached : parameter.adapters()) ++adapters[{attached->scale().rank, attached->scale().alpha}];
  }
  constexpr size_t kShown = 3;
  size_t shown = 0;
  for (const auto& [scale, count] : adapters) {
    logger_.log(shown++ < kShown ? LogLevel::kInfo : LogLevel::kDebug,
                fmt::format("{} r {} alpha {} scaling {:.4g}: {} adapters", adapter_kind(lora).name, scale.first,
                            scale.second, lora.scaling(scale.second, scale.first), count));
  }
  if (adapters.size() > kShown) logger_.info("and {} more ranks and alphas of adapters", adapters.size() - kShown);
}

void Trainer::report_defaults() {
  const std::string defaults = config_writer_.defaults ? config_writer_.defaults(config_) : "";
  if (!defaults.empty()) logger_.debug("not stated, so the default: {}", defaults);
}

std::filesystem::path Trainer::tokenizer_directory() const {
  return hone::tokenizer_directory(config_, model_->directory());
}

void Trainer::load_data() {
  loaded_data_ = hone::load_data(config_, tokenizer_directory(), model_->decoder().config().vocab_size, pool_, logger_);
  make_loader();
  const int64_t total = config_.schedule.max_steps ? *config_.schedule.max_steps
                                                   : loader_->steps_in_epochs(config_.schedule.num_train_epochs);
  schedule_ = schedule_of(config_.schedule, total);
  const auto share_of_all = [&](std::optional<double>& ratio, auto& steps) {
    if (ratio) steps = static_cast<int64_t>(std::ceil(static_cast<double>(total) * *ratio));
    ratio.reset();
  };
  share_of_all(config_.report.logging_steps_ratio, config_.report.logging_steps);
  share_of_all(config_.checkpoint.save_steps_ratio, config_.checkpoint.save_steps);
  share_of_all(config_.eval.eval_steps_ratio, config_.eval.eval_steps);
  fill_in_steps(config_.checkpoint.saves_per_epoch, config_.checkpoint.save_steps);
  fill_in_steps(config_.eval.evals_per_epoch, config_.eval.eval_steps);
}

/// Unset steps become a part of an epoch; the resolved configuration states them alone.
void Trainer::fill_in_steps(std::optional<int64_t>& per_epoch, std::optional<int64_t>& steps) {
  const int64_t times = per_epoch.value_or(1);
  if (!steps) steps = (loader_->steps_in_epoch(0) + times - 1) / times;
  per_epoch.reset();
}

void Trainer::make_loader() {
  loader_ = std::make_unique<Loader>(training_data().train, train_loader_options(config_));
  if (training_data().eval.size() > 0)
    eval_batches_ = Loader(training_data().eval, eval_loader_options(config_)).all_in_order();
}

void Trainer::make_engine(bool training) {
  EngineOptions options;
  options.training = training;
  options.accumulates = config_.schedule.gradient_accumulation_steps > 1;
  options.offload_activations = offloads_activations(config_.machine.cpu_offload);
  options.ranks = communicator_.get();
  if (training) options.capacity = loader_->capacity();
  if (!eval_batches_.empty()) {
    const SampleStore& evaluated = training_data().eval.size() > 0 ? training_data().eval : training_data().train;
    const BatchCapacity eval = Loader(evaluated, eval_loader_options(config_)).capacity();
    for (int64_t BatchCapacity::*field : {&BatchCapacity::max_tokens, &BatchCapacity::max_documents,
                                          &BatchCapacity::max_supervised, &BatchCapacity::max_seqlen}) {
      options.capacity.*field = std::max(options.capacity.*field, eval.*field);
    }
  }
  options.train_datasets = training ? static_cast<int64_t>(training_data().train_names.size()) : 0;
  options.eval_datasets = static_cast<int64_t>(training_data().eval_names.size());
  options.optimizer = optimizer_options(config_);
  options.router_aux_loss_coef = config_.model.router_aux_loss_coef.value_or(0);
  options.methods = methods_;
  options.aux_loss_sum = config_.model.aux_loss_reduction == "hf_sum";
  options.seed = static_cast<uint64_t>(config_.machine.seed);
  options.cuda_graphs = graph_use_of(config_.machine.cuda_graphs);
  const bool answers = training && config_.generation.generate_samples;  // of up to max_length, prompt included
  model_->decoder().prepare(stream_, std::max(options.capacity.max_seqlen, answers ? *config_.data.max_length : 0));
  engine_.reset();
  engine_ = std::make_unique<Engine>(model_->decoder(), model_->store(), stream_, options);
}

void Trainer::load_weights(bool inference) {
  int64_t total = 0;
  for (const auto& [name, tensor] : model_->checkpoint().tensors()) total += static_cast<int64_t>(tensor.entry->bytes);
  if (const auto& quantization = model_->checkpoint().quantization()) {
    logger_.info("the checkpoint is {}: dequantised to {}{} as it loads; trained weights are saved in bfloat16",
                 quantization->name(), name_of(model_->decoder().dtype()),
                 expert_format_of(config_).dense()
                     ? ""
                     : fmt::format(", and experts rounded to {},", expert_format_of(config_).name()));
  }
  const auto begin = std::chrono::steady_clock::now();
  model_->load(stream_.device(), pool_, static_cast<uint64_t>(config_.machine.seed), inference, [&](int64_t bytes) {
    logger_.console().set_progress({.label = "load weights", .done = bytes, .total = total});
  });
  logger_.console().clear_progress();
  if (model_->lora()) order_frozen_weights(model_->store(), pool_);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  logger_.info("weights loaded: {:.2f} GB in {:.1f} s", static_cast<double>(total) / 1e9, seconds);
}

void Trainer::report_model() {
  std::vector<ParameterGroupRow> rows;
  int64_t trainable = 0, all = 0;
  for (const Parameter& parameter : model_->store().all()) {
    const std::string group(group_of(parameter.kind()));
    auto row = std::find_if(rows.begin(), rows.end(), [&](const ParameterGroupRow& r) { return r.group == group; });
    if (row == rows.end()) row = rows.insert(rows.end(), {group});
    const int64_t n = parameter.shape().numel();
    ++row->tensors;
    row->parameters += n;
    if (parameter.trainable()) row->trainable_parameters += n;
    all += n;
    if (parameter.trainable()) trainable += n;
  }
  logger_.detail_block(parameter_table(rows, logger_.console().color()));
  logger_.info("{}", trainable_summary(trainable, all));
  if (trainable == 0) {
    throw UserError("nothing is trained: every parameter is frozen", "freeze_parameters",
                    "unfreeze some with trainable_parameters");
  }
}

void Trainer::report_data() {
  log_data_report(training_data(), *config_.data.max_length, logger_);
  log_proof_sheet(*loaded_data_, tokenizer_directory(), std::nullopt, logger_);
  const RunConfig::Schedule& schedule = config_.schedule;
  const std::string ranks =
      ranks_.size > 1 ? fmt::format(" × {} ranks = {}", ranks_.size, schedule.global_batch_size) : "";
  logger_.info("{} optimizer steps, {} an epoch; {} × {}{} sequences of up to {} tokens a step", schedule_.total_steps,
               loader_->steps_in_epoch(0), schedule.per_device_train_batch_size, schedule.gradient_accumulation_steps,
               ranks, *config_.data.max_length);
}

void Trainer::check_same_data(const std::filesystem::path& checkpoint, const Json& now) {
  const std::string difference = identity_difference(state_.data, now);
  if (!difference.empty() && !config_.checkpoint.ignore_data_skip) {
    throw UserError("the data are not those of the run that stopped, so it cannot go on with them: " + difference,
                    checkpoint.string(),
                    "give it the data and options it had; or ignore_data_skip: true goes on with weights and optimizer "
                    "as they are and takes the data from their beginning; or start a new run from these weights");
  }
  if (config_.checkpoint.ignore_data_skip) {
    logger_.info("ignore_data_skip: the data are taken from their beginning{}",
                 difference.empty() ? "" : "; " + difference);
  }
  if (eval_differs(state_.data, now)) {
    logger_.warning("the validation data are not those of the run that stopped: its evaluations cannot be compared");
  }
  state_.data = now;
}

/// What the checkpoint says besides the weights.
void Trainer::load_position(const std::filesystem::path& checkpoint, ReadLedger& ledger) {
  const RunConfig::Checkpoint& options = config_.checkpoint;
  const Json now = state_.data;  // of this run
  if (!options.resume_only_model) {
    state_ = load_training_state(checkpoint, model_->store(), &ledger);
  } else if (const auto stored = read_run_state(checkpoint); stored && !options.ignore_data_skip) {
    state_ = *stored;
    state_.optimizer_step = 0;
  }
  if (options.ignore_data_skip) state_.first_data_step = state_.step;
  check_same_data(checkpoint, now);
}

std::optional<std::filesystem::path> Trainer::open_output() {
  check_inputs_stay(config_);
  check_output_dir(config_);
  run_folder_ = std::make_unique<RunFolder>(config_.report.output_dir, logger_);
  open_logs();
  return find_checkpoint();
}

std::optional<std::filesystem::path> Trainer::find_checkpoint() {
  return checkpoints_.find(config_.checkpoint.resume_from_checkpoint, config_.checkpoint.resume_only_model,
                           [&](const std::string& text) { logger_.warning("{}", text); });
}

bool Trainer::resume_from(std::optional<std::filesystem::path> checkpoint) {
  while (checkpoint) {
    const std::string problem = resume(*checkpoint);
    if (problem.empty()) return true;
    if (config_.checkpoint.resume_from_checkpoint != "auto") {
      throw UserError("the checkpoint is damaged: " + problem, checkpoint->string(),
                      "resume=auto takes the newest one that is whole");
    }
    if (writes()) {
      logger_.warning("{}", checkpoints_.pass_over(*checkpoint, problem).text);
      checkpoint = find_checkpoint();
    }
    checkpoint = from_first_rank(checkpoint);
  }
  return false;
}

void Trainer::load_checkpoint(const std::filesystem::path& checkpoint, ReadLedger& ledger) {
  stream_.synchronize();
  if (model_->lora()) {
    load_adapter(checkpoint, model_->store(), &ledger);
  } else {
    const Checkpoint weights = Checkpoint::open(checkpoint, &ledger);
    load_parameters(weights, model_->map_of(weights), model_->store(), pool_);
  }
  load_position(checkpoint, ledger);
}

/// Each rank has read its own part of what ranks share of the weights and of the optimizer's state, and the rest whole.
std::string Trainer::damage_of(const std::filesystem::path& checkpoint, ReadLedger& ledger) {
  const std::optional<Manifest> manifest = Manifest::read(checkpoint);
  if (!manifest) {
    if (writes()) {
      logger_.warning("{} has no {}: whether its files are whole is not known", checkpoint.string(), kManifestName);
    }
    return "";
  }
  const bool shared = model_->store().shards_state();
  std::string problem;
  if (!model_->store().shards_values()) {
    problem = manifest->contents_problem(
        checkpoint, ledger, shared ? std::set<std::string>{"training_state.safetensors"} : std::set<std::string>{});
  }
  if (!communicator_) return problem;
  Control& control = communicator_->control();
  for (const std::string& other : control.exchange(problem)) {
    if (problem.empty()) problem = other;
  }
  if (!shared || !problem.empty()) return problem;
  ReadLedger all;
  for (const std::string& pieces : control.exchange(ledger.pieces().dump())) all.merge(parse_json(pieces));
  return manifest->contents_problem(checkpoint, all);
}

std::string Trainer::resume(const std::filesystem::path& checkpoint) {
  ReadLedger ledger;
  const RunState before = state_;
  try {
    load_checkpoint(checkpoint, ledger);
  } catch (const UserError&) {
    // What damaged files say makes no sense; what whole ones say is for the user to hear.
    if (communicator_) throw;
    const std::optional<Manifest> manifest = Manifest::read(checkpoint);
    const std::string problem = manifest ? manifest->contents_problem(checkpoint, {}) : "";
    if (problem.empty()) throw;
    state_ = before;
    return problem;
  }
  if (const std::string problem = damage_of(checkpoint, ledger); !problem.empty()) {
    state_ = before;
    return problem;
  }
  if (writes()) state_.branch = checkpoints_.branch_from(state_.step, state_.branch);
  engine_->gather_values();
  if (state_.total_steps > 0 && state_.total_steps != schedule_.total_steps) {
    logger_.warning("the stopped run was planned for {} steps, this one for {}: the learning rates of the rest differ",
                    state_.total_steps, schedule_.total_steps);
  }
  last_saved_ = state_.step;
  saved_best_ = state_.best_step;
  logger_.info("resumed from {} at step {}{}", checkpoint.string(), state_.step,
               config_.checkpoint.resume_only_model ? ", with a new optimizer" : "");
  return "";
}

}  // namespace hone
