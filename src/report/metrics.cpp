#include "report/metrics.h"

#include <algorithm>

namespace hone {
namespace {

class List {
 public:
  void add(const char* name, double value) { metrics_.push_back({name, value, false}); }
  void add(const char* name, const std::optional<double>& value) {
    if (value) add(name, *value);
  }
  void count(const char* name, int64_t value) { metrics_.push_back({name, static_cast<double>(value), true}); }
  void count(const char* name, const std::optional<double>& value) {
    if (value) metrics_.push_back({name, *value, true});
  }
  void add_named(std::string name, double value) { metrics_.push_back({std::move(name), value, false}); }
  std::vector<Metric> take() { return std::move(metrics_); }

 private:
  std::vector<Metric> metrics_;
};

void add_efficiency(List& list, const Efficiency& e) {
  list.add("step_time_sec", e.step_time_sec);
  list.add("avg_step_time_sec", e.avg_step_time_sec);
  list.add("time_to_completion_sec", e.time_to_completion_sec);
  list.add("estimated_total_time_sec", e.estimated_total_time_sec);
  list.add("step_peak_memory_allocated_MB", e.step_peak_memory_allocated_MB);
  list.add("step_peak_memory_reserved_MB", e.step_peak_memory_reserved_MB);
  list.add("total_peak_memory_allocated_MB", e.total_peak_memory_allocated_MB);
  list.add("total_peak_memory_reserved_MB", e.total_peak_memory_reserved_MB);
  list.add("step_tokens_per_second", e.step_tokens_per_second);
  list.add("avg_tokens_per_second", e.avg_tokens_per_second);
}

}  // namespace

std::vector<Metric> metric_list(const StepMetrics& m) {
  List list;
  list.count("step", m.step);
  list.add("epoch", m.epoch);
  list.add("loss", m.loss);
  list.add("loss_with_aux", m.loss_with_aux);
  list.add("grad_norm", m.grad_norm);
  list.add("learning_rate", m.learning_rate);
  list.count("num_tokens", m.num_tokens);
  list.count("num_supervised_tokens", m.num_supervised_tokens);
  list.add("tokens_per_second", m.tokens_per_second);
  list.add("samples_per_second", m.samples_per_second);
  list.add("step_time", m.step_time);
  list.add("mean_token_accuracy", m.mean_token_accuracy);
  list.add("entropy", m.entropy);
  list.add("mfu", m.mfu);
  list.count("memory/max_alloc", m.max_alloc);
  list.count("memory/host_rss", m.host_rss);
  list.add("gpu/utilization", m.gpu_utilization);
  list.add("gpu/power", m.gpu_power);
  list.add("gpu/temperature", m.gpu_temperature);
  list.add("eta", m.eta);
  list.add("router/aux_loss", m.router_aux_loss);
  list.add("router/z_loss", m.router_z_loss);
  list.add("router/load_max_over_mean", m.router_load_max_over_mean);
  list.add("router/entropy", m.router_entropy);
  list.add("router/dead_experts", m.router_dead_experts);
  list.count("router/dropped_tokens", m.router_dropped_tokens);
  list.add("data/packing_efficiency", m.packing_efficiency);
  list.add("data/wait", m.data_wait);
  list.count("data/dropped_samples", m.dropped_samples);
  for (const NamedValue& named : m.dataset_loss) list.add_named("loss/" + named.name, named.value);
  for (const NamedValue& named : m.router_layers) list.add_named("router/" + named.name, named.value);
  if (m.efficiency) add_efficiency(list, *m.efficiency);
  return list.take();
}

std::vector<Metric> metric_list(const EvalMetrics& m) {
  List list;
  list.count("step", m.step);
  list.add("epoch", m.epoch);
  list.add("eval_loss", m.eval_loss);
  list.add("eval_perplexity", m.eval_perplexity);
  list.add("eval_mean_token_accuracy", m.eval_mean_token_accuracy);
  for (const NamedValue& named : m.dataset_loss) list.add_named("eval_" + named.name + "_loss", named.value);
  list.add("generation/finished", m.generation_finished);
  list.add("generation/tokens", m.generation_tokens);
  return list.take();
}

std::optional<Efficiency> EfficiencyMeter::after(const StepMetrics& step) {
  constexpr double kMegabyte = 1 << 20;
  const int64_t tokens = step.num_tokens - std::exchange(tokens_before_, step.num_tokens);
  if (++seen_ <= kWarmUpSteps) return std::nullopt;
  ++timed_;
  seconds_ += step.step_time;
  tokens_ += tokens;
  const double reserved = step.max_alloc.value_or(0);
  peak_allocated_ = std::max(peak_allocated_, step.allocated);
  peak_reserved_ = std::max(peak_reserved_, reserved);
  const double average = seconds_ / static_cast<double>(timed_);
  const auto rate = [](int64_t count, double seconds) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
  };
  return Efficiency{
      .step_time_sec = step.step_time,
      .avg_step_time_sec = average,
      .time_to_completion_sec = average * static_cast<double>(std::max<int64_t>(0, total_steps_ - step.step)),
      .estimated_total_time_sec = average * static_cast<double>(total_steps_),
      .step_peak_memory_allocated_MB = step.allocated / kMegabyte,
      .total_peak_memory_allocated_MB = peak_allocated_ / kMegabyte,
      .step_peak_memory_reserved_MB = reserved / kMegabyte,
      .total_peak_memory_reserved_MB = peak_reserved_ / kMegabyte,
      .step_tokens_per_second = rate(tokens, step.step_time),
      .avg_tokens_per_second = rate(tokens_, seconds_)};
}

}  // namespace hone
