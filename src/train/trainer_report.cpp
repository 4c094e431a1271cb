// What the trainer says of a run: metrics of a step, the routers' balance, answers to samples, training_info.json.
#include <fmt/format.h>

#include <algorithm>

#include "dist/local_process.h"
#include "report/chart.h"
#include "session/device_facts.h"
#include "train/model_flops.h"
#include "train/trainer.h"
#include "train/training_info.h"

namespace hone {

namespace {

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::vector<NamedValue> Trainer::dataset_losses(const LossResult& result, const std::vector<std::string>& names) {
  std::vector<NamedValue> losses;
  for (size_t i = 0; i < result.datasets.size(); ++i) {
    if (result.datasets[i].weight > 0) losses.push_back({names[i], result.datasets[i].loss, result.datasets[i].weight});
  }
  return losses;
}

StepMetrics Trainer::step_metrics(const StepData& data, const StepResult& result, double seconds) const {
  StepMetrics metrics;
  metrics.step = state_.step;
  metrics.epoch = data.epoch;
  metrics.loss = result.loss.loss;
  metrics.loss_with_aux = result.loss_with_aux;
  metrics.grad_norm = result.grad_norm;
  metrics.learning_rate = engine_->options().optimizer.rate(schedule_.at(state_.step - 1), state_.optimizer_step - 1);
  metrics.num_tokens = state_.num_tokens;
  metrics.num_supervised_tokens = state_.num_supervised_tokens;
  metrics.step_supervised_tokens = result.loss.supervised;
  metrics.tokens_per_second = static_cast<double>(result.loss.tokens) / seconds;
  metrics.samples_per_second = static_cast<double>(data.samples) / seconds;
  metrics.step_time = seconds;
  metrics.mean_token_accuracy = result.loss.mean_token_accuracy;
  metrics.entropy = result.loss.entropy;
  if (peak_flops_) {
    const double backward = model_->lora() ? 1 : 2;  // of forward's cost: frozen weights have no gradient
    const double flops = (1 + backward) * model_->decoder().flops(work_of(data));
    metrics.mfu = flops / seconds / (*peak_flops_ * ranks_.size);
  }
  metrics.allocated = static_cast<double>(planned_bytes_);
  metrics.max_alloc = static_cast<double>(used_memory(stream_.device()));
  const GpuReading gpu = gpu_monitor_->latest();
  metrics.gpu_utilization = gpu.utilization;
  metrics.gpu_power = gpu.power;
  metrics.gpu_temperature = gpu.temperature;
  metrics.host_rss = static_cast<double>(resident_bytes());
  metrics.packing_efficiency = data.packing_efficiency;
  const SampleCounts& counts = training_data().train.counts();
  metrics.dropped_samples = static_cast<double>(counts.too_long + counts.unsupervised);
  if (result.routing.layers > 0) add_routers(result, metrics);
  metrics.dataset_loss = dataset_losses(result.loss, training_data().train_names);
  return metrics;
}

/// What MLflow is told of the machines, where MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING asks for it. All ranks agree on
/// when.
void Trainer::report_system(Reporter& reporter) {
  if (!system_watch_) {
    const std::vector<std::string>& sinks = config_.report.report_to;
    const bool mlflow = std::find(sinks.begin(), sinks.end(), "mlflow") != sinks.end();
    if (!mlflow || system_watch_asked_) return;
    system_watch_asked_ = true;
    if (!on_any_rank(writes() && system_metrics_wanted())) return;
    system_watch_.emplace();
    system_watch_->interval = system_metrics_interval();
    if (ranks_.local_rank == 0) system_watch_->host.emplace();
    return;  // from the next step on: processors are measured from one sample to the next
  }
  SystemWatch& watch = *system_watch_;
  if (!on_any_rank(writes() && (!watch.last || seconds_since(*watch.last) >= watch.interval))) return;
  watch.last = WallClock::now();
  const std::string mine = watch.host ? packed_metrics(host_name(), watch.host->sample()) : "";
  const std::vector<std::string> all =
      communicator_ ? communicator_->control().exchange(mine) : std::vector<std::string>{mine};
  reporter.on_system(state_.step, system_metrics_of(all));
}

/// Balance and entropy: means over the layers, and each layer's if they are asked for.
void Trainer::add_routers(const StepResult& result, StepMetrics& metrics) const {
  const std::vector<LayerLoad> loads = layer_loads(result.routing);
  double load = 0, entropy = 0;
  int64_t dead = 0;
  for (size_t layer = 0; layer < loads.size(); ++layer) {
    load += loads[layer].max_over_mean;
    entropy += loads[layer].entropy;
    dead += loads[layer].dead;
    if (!config_.model.moe_log_expert_load) continue;
    const std::string name = fmt::format("layer_{}/", layer);
    metrics.router_layers.push_back({name + "load_max_over_mean", loads[layer].max_over_mean});
    metrics.router_layers.push_back({name + "effective_experts", loads[layer].effective_experts});
    metrics.router_layers.push_back({name + "entropy", loads[layer].entropy});
    metrics.router_layers.push_back({name + "dead_experts", static_cast<double>(loads[layer].dead)});
  }
  const auto layers = static_cast<double>(loads.size());
  metrics.router_aux_loss = result.loss.aux_loss;
  metrics.router_load_max_over_mean = load / layers;
  metrics.router_dead_experts = static_cast<double>(dead);
  metrics.router_entropy = entropy / layers;
  metrics.router_z_loss = result.routing.mean_z_loss();
  metrics.router_dropped_tokens = 0.0;
}

void Trainer::prepare_reports(bool resumed) {
  start_time_ = unix_time();
  const DecoderConfig& decoder = model_->decoder().config();
  bool trains_router = false;
  for (const Parameter& p : model_->store().all()) trains_router |= p.kind() == ParameterKind::kRouter && p.trainable();
  router_watch_ = std::make_unique<RouterWatch>(
      RouterWatchOptions{.experts_per_token = decoder.moe.num_experts_per_tok,
                         .trains_router = trains_router,
                         .aux_loss_coef = config_.model.router_aux_loss_coef.value_or(0)});
  router_watch_->restore(state_.router_watch, decoder.num_moe_layers(), decoder.moe.num_experts);
  // Where ranks share the weights, generating takes all of them.
  const bool generates = writes() || model_->store().shards_values();
  if (generates && config_.generation.generate_samples && config_.generation.num_generation_samples > 0)
    prepare_samples(resumed);
}

void Trainer::watch_routers(const StepResult& result) {
  if (result.nonfinite) return;
  for (const std::string& alarm : router_watch_->add(result.routing, result.loss.loss)) logger_.warning("{}", alarm);
  if (config_.model.moe_log_expert_load && state_.step == 1) show_expert_load();
}

void Trainer::show_expert_load() {
  if (router_watch_->empty() || shown_load_ == state_.step) return;
  shown_load_ = state_.step;
  logger_.block(heat_map(router_watch_->heat_map(),
                         {.max_width = logger_.console().width(), .color = logger_.console().color()}));
}

void Trainer::prepare_samples(bool resumed) {
  const RunConfig::Generation& stated = config_.generation;
  SamplingOptions sampling = read_sampling_defaults(model_->directory()).options;
  sampling.max_new_tokens = stated.max_new_tokens;
  sampling.temperature = stated.temperature.value_or(sampling.temperature);
  sampling.top_p = stated.top_p.value_or(sampling.top_p);
  sampling.top_k = stated.top_k.value_or(sampling.top_k);
  sampling.repetition_penalty = stated.repetition_penalty.value_or(sampling.repetition_penalty);
  sampling.do_sample = stated.do_sample.value_or(sampling.do_sample);
  sampling.seed = static_cast<uint64_t>(config_.machine.seed);
  GenerateTogether together;
  if (model_->store().shards_values()) together = {engine_->value_observer(), &communicator_->control()};
  answers_ = std::make_unique<SampleAnswers>(
      training_data().eval, loaded_data_->tokenizer ? &*loaded_data_->tokenizer : nullptr, model_->decoder(), stream_,
      SampleAnswerOptions{.count = stated.num_generation_samples,
                          .max_length = *config_.data.max_length,
                          .sampling = sampling,
                          .together = together});
  if (!writes()) return;
  const std::string path = config_.report.output_dir + "/generations.jsonl";
  ResumedMetrics found;
  generations_.emplace(resumed ? MetricsFile::resume(path, state_.step, found) : MetricsFile::create(path));
}

void Trainer::answer_samples(EvalMetrics& metrics) {
  if (!answers_) return;
  const std::vector<SampleAnswer> answers = answers_->generate();
  if (!writes()) return;
  double finished = 0, tokens = 0;
  for (const SampleAnswer& answer : answers) {
    Json row = {{"step", state_.step}};
    row.update(to_json(answer));
    generations_->append(row);
    finished += answer.finished;
    tokens += static_cast<double>(answer.tokens);
  }
  metrics.generation_finished = finished / static_cast<double>(answers.size());
  metrics.generation_tokens = tokens / static_cast<double>(answers.size());
  logger_.block(sample_answers_text(answers, logger_.console().width(), logger_.console().color()));
}

void Trainer::write_training_info(const std::string& status) {
  if (!writes()) return;
  const RunFacts facts{.status = status,
                       .start_time = start_time_,
                       .end_time = unix_time(),
                       .device = device_text(stream_.device()),
                       .threads = pool_.size(),
                       .peak_memory = used_memory(stream_.device()),
                       .total_steps = schedule_.total_steps,
                       .epoch = epoch_,
                       .train_samples = training_data().train.size(),
                       .eval_samples = training_data().eval.size(),
                       .loss = last_loss_,
                       .eval_loss = last_eval_loss_};
  write_text_file(
      std::filesystem::path(config_.report.output_dir) / "training_info.json",
      training_info(config_, *model_, state_, facts).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void Trainer::report_graphs() {
  const GraphCache::Counts& counts = engine_->graph_counts();
  if (counts.replayed == 0) return;
  logger_.info("cuda_graphs: {} of {} micro-batches and updates were replayed", counts.replayed,
               counts.called + counts.recorded + counts.replayed);
}

}  // namespace hone
