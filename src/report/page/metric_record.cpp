#include "report/page/metric_record.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "core/text/json.h"
#include "report/page/record_rows.h"

namespace hone {

namespace {

constexpr size_t kMostDatasets = 12;  // series loss/NAME and eval_NAME_loss
constexpr size_t kRateBuckets = 1000;

/// The metrics that the page shows, in its order.
constexpr const char* kMetrics[] = {"loss",
                                    "eval_loss",
                                    "learning_rate",
                                    "grad_norm",
                                    "tokens_per_second",
                                    "step_time",
                                    "data/wait",
                                    "mfu",
                                    "memory/max_alloc",
                                    "memory/host_rss",
                                    "gpu/utilization",
                                    "gpu/power",
                                    "gpu/temperature",
                                    "mean_token_accuracy",
                                    "eval_mean_token_accuracy",
                                    "entropy",
                                    "router/aux_loss",
                                    "router/load_max_over_mean",
                                    "router/dead_experts",
                                    "router/entropy",
                                    "data/packing_efficiency",
                                    "generation/finished",
                                    "generation/tokens"};

bool is_dataset_loss(std::string_view name) {
  return name.starts_with("loss/") || (name.starts_with("eval_") && name.ends_with("_loss") && name != "eval_loss");
}

}  // namespace

void MetricRecord::add(const Json& row) {
  ++lines_;
  const int64_t step = row_step(row);
  last_step_ = std::max(last_step_, step);
  bool late = false;
  for (const auto& [name, value] : row.items()) {
    const bool is_gap = value.is_null();
    if (name == "eta" && value.is_number()) left_ = value.get<double>();
    if (!(value.is_number() || is_gap) || !shown(name)) continue;
    const double number = is_gap ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
    if (!series_[name].add(step, number)) {
      late = true;
    } else if (!is_gap) {
      summarise(name, step, number);
    }
  }
  late_ += late;
}

Json MetricRecord::summary() const {
  Json all = Json::object();
  if (loss_) all["loss"] = *loss_;
  if (best_) {
    all["eval_loss"] = best_->second;
    all["eval_step"] = best_->first;
  }
  if (const auto rate = series_.find("tokens_per_second"); rate != series_.end()) {
    const std::vector<SeriesBucket> steps = rate->second.reduced(kRateBuckets);
    double sum = 0;
    int64_t points = 0;
    for (size_t i = steps.size() / 10; i < steps.size(); ++i) {
      if (steps[i].points == 0) continue;
      sum += steps[i].mean * static_cast<double>(steps[i].points);
      points += steps[i].points;
    }
    if (points > 0) all["tokens_per_second"] = sum / static_cast<double>(points);
  }
  if (memory_ > 0) all["memory"] = memory_;
  if (left_) all["seconds_left"] = *left_;
  return all;
}

Json MetricRecord::series(size_t buckets) const {
  Json all = Json::object();
  const auto add = [&](const std::string& name, const Series& metric) {
    all[name] = series_json(metric.reduced(buckets));
  };
  for (const char* name : kMetrics) {
    if (const auto found = series_.find(name); found != series_.end()) add(name, found->second);
  }
  for (const auto& [name, metric] : series_) {
    if (is_dataset_loss(name)) add(name, metric);
  }
  return all;
}

void MetricRecord::summarise(const std::string& name, int64_t step, double value) {
  if (name == "loss") loss_ = value;
  if (name == "eval_loss" && step > 0 && (!best_ || value < best_->second)) best_ = {step, value};
  if (name == "memory/max_alloc") memory_ = std::max(memory_, value);
}

bool MetricRecord::shown(const std::string& name) {
  if (std::find(std::begin(kMetrics), std::end(kMetrics), name) != std::end(kMetrics)) return true;
  if (!is_dataset_loss(name)) return false;
  return series_.contains(name) || datasets_++ < kMostDatasets;
}

}  // namespace hone
