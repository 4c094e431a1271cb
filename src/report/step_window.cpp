#include "report/step_window.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "core/error.h"

namespace hone {
namespace {

using Steps = std::span<const StepMetrics>;
using Required = double StepMetrics::*;
using Optional = std::optional<double> StepMetrics::*;

class Mean {
 public:
  void add(double value, double weight) {
    sum_ += value * weight;
    weight_ += weight;
    plain_sum_ += value;
    ++count_;
  }
  bool empty() const { return count_ == 0; }
  // Without any weight (no supervised token, no measured time) every step counts the same.
  double value() const { return weight_ > 0 ? sum_ / weight_ : plain_sum_ / count_; }

 private:
  double sum_ = 0, weight_ = 0, plain_sum_ = 0;
  int count_ = 0;
};

double by_tokens(const StepMetrics& step) { return static_cast<double>(step.step_supervised_tokens); }
double by_time(const StepMetrics& step) { return step.step_time; }
double by_step(const StepMetrics&) { return 1.0; }

template <class Weight>
double mean(Steps steps, Required field, Weight weight) {
  Mean mean;
  for (const auto& step : steps) mean.add(step.*field, weight(step));
  return mean.value();
}

template <class Weight>
std::optional<double> mean(Steps steps, Optional field, Weight weight) {
  Mean mean;
  for (const auto& step : steps) {
    if (step.*field) mean.add(*(step.*field), weight(step));
  }
  return mean.empty() ? std::nullopt : std::optional(mean.value());
}

template <class Combine>
std::optional<double> fold(Steps steps, Optional field, Combine combine) {
  std::optional<double> result;
  for (const auto& step : steps) {
    if (step.*field) result = result ? combine(*result, *(step.*field)) : *(step.*field);
  }
  return result;
}

std::vector<NamedValue> named_means(Steps steps, std::vector<NamedValue> StepMetrics::*field) {
  std::vector<std::pair<NamedValue, Mean>> means;
  for (const auto& step : steps) {
    for (const NamedValue& named : step.*field) {
      auto at =
          std::find_if(means.begin(), means.end(), [&](const auto& entry) { return entry.first.name == named.name; });
      if (at == means.end()) at = means.insert(means.end(), {{named.name, 0, 0}, Mean{}});
      at->second.add(named.value, named.weight);
      at->first.weight += named.weight;
    }
  }
  std::vector<NamedValue> result;
  for (const auto& [named, values] : means) result.push_back({named.name, values.value(), named.weight});
  return result;
}

}  // namespace

StepMetrics StepWindow::take() {
  HONE_ASSERT(!steps_.empty());
  const std::vector<StepMetrics> steps = std::exchange(steps_, {});
  StepMetrics result = steps.back();
  if (steps.size() == 1) return result;
  for (const Required field : {&StepMetrics::loss, &StepMetrics::loss_with_aux}) {
    result.*field = mean(steps, field, by_tokens);
  }
  for (const Optional field : {&StepMetrics::mean_token_accuracy, &StepMetrics::entropy}) {
    result.*field = mean(steps, field, by_tokens);
  }
  for (const Required field : {&StepMetrics::tokens_per_second, &StepMetrics::samples_per_second}) {
    result.*field = mean(steps, field, by_time);
  }
  for (const Optional field : {&StepMetrics::mfu, &StepMetrics::gpu_utilization, &StepMetrics::gpu_power}) {
    result.*field = mean(steps, field, by_time);
  }
  result.step_time = mean(steps, &StepMetrics::step_time, by_step);
  for (const Optional field :
       {&StepMetrics::router_aux_loss, &StepMetrics::router_z_loss, &StepMetrics::router_load_max_over_mean,
        &StepMetrics::router_entropy, &StepMetrics::router_dead_experts, &StepMetrics::packing_efficiency}) {
    result.*field = mean(steps, field, by_step);
  }
  const auto larger = [](double a, double b) { return std::max(a, b); };
  result.max_alloc = fold(steps, &StepMetrics::max_alloc, larger);
  result.host_rss = fold(steps, &StepMetrics::host_rss, larger);
  result.router_dropped_tokens =
      fold(steps, &StepMetrics::router_dropped_tokens, [](double a, double b) { return a + b; });
  result.dataset_loss = named_means(steps, &StepMetrics::dataset_loss);
  result.router_layers = named_means(steps, &StepMetrics::router_layers);
  result.step_supervised_tokens = 0;
  for (const auto& step : steps) result.step_supervised_tokens += step.step_supervised_tokens;
  return result;
}

}  // namespace hone
