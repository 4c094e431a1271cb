#include "report/step_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "report/humanise.h"
#include "report/terminal.h"

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
  // Without any weight (no supervised token, no measured time) all steps have equal weight.
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
        &StepMetrics::router_entropy, &StepMetrics::router_dead_experts, &StepMetrics::packing_efficiency,
        &StepMetrics::data_wait}) {
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

namespace {

constexpr int kMargin = 2, kFieldGap = 2;

struct Field {
  std::string label, value;
  int value_width = 0;
  int keep = 0;      // the field with the smallest value is omitted first
  bool bad = false;  // not finite
  std::string unit = {};
};

std::string loss_text(double loss) {
  if (!std::isfinite(loss) || std::abs(loss) >= 1000) return short_number(loss);
  return fmt::format("{:.{}f}", loss, std::abs(loss) < 10 ? 4 : std::abs(loss) < 100 ? 3 : 2);
}

// Two digits after the zeros are enough for a norm, and keep its column narrow.
std::string norm_text(double norm) {
  if (std::isfinite(norm) && norm >= 0.001 && norm < 0.1) return fmt::format("{:.3f}", norm);
  return std::isfinite(norm) && norm > 0 && norm < 0.001 ? fmt::format("{:.0e}", norm) : short_number(norm);
}

Field number_field(std::string label, double value, std::string text, int width, int keep) {
  return {std::move(label), std::move(text), width, keep, !std::isfinite(value)};
}

std::string percent(double share) { return std::isfinite(share) ? fmt::format("{:.1f}%", 100 * share) : "NaN"; }

std::vector<Field> step_fields(const StepMetrics& m) {
  std::vector<Field> fields;
  fields.push_back(number_field("loss", m.loss, loss_text(m.loss), 6, 9));
  if (m.mean_token_accuracy) {
    fields.push_back(number_field("acc", *m.mean_token_accuracy, percent(*m.mean_token_accuracy), 6, 1));
  }
  fields.push_back(number_field("grad", m.grad_norm, norm_text(m.grad_norm), 5, 5));
  fields.push_back(number_field("lr", m.learning_rate, short_number(m.learning_rate), 7, 4));
  fields.push_back(number_field("", m.tokens_per_second, human_count(m.tokens_per_second), 5, 8));
  fields.back().unit = " tok/s";
  if (const auto memory = m.max_alloc ? m.max_alloc : m.host_rss) {
    fields.push_back(number_field("mem", *memory, human_bytes(*memory), 7, 2));
  }
  if (m.router_load_max_over_mean) {
    const double load = *m.router_load_max_over_mean;
    fields.push_back(number_field("expert", load, short_number(load) + "x", 5, 3));
  }
  if (m.eta) fields.push_back({"eta", human_duration(*m.eta), 6, 6, false});
  return fields;
}

int width_of(const Field& field) {
  const int label = field.label.empty() ? 0 : display_width(field.label) + 1;
  return label + std::max(field.value_width, display_width(field.value)) + display_width(field.unit);
}

void leave_out_what_does_not_fit(std::vector<Field>& fields, int width) {
  const auto total = [&] {
    int sum = 0;
    for (const auto& field : fields) sum += kFieldGap + width_of(field);
    return sum;
  };
  while (fields.size() > 1 && total() > width) {
    fields.erase(
        std::min_element(fields.begin(), fields.end(), [](const Field& a, const Field& b) { return a.keep < b.keep; }));
  }
}

std::string shown(const Field& field, bool color) {
  const std::string label = field.label.empty() ? "" : styled(field.label + " ", Style::kDim, color);
  const Style style = field.bad ? Style::kRed : Style::kPlain;
  return label + pad_left(styled(field.value, style, color), field.value_width) +
         styled(field.unit, Style::kDim, color);
}

}  // namespace

std::string step_column(int64_t step, const LineLayout& layout) {
  const std::string total = std::to_string(layout.total_steps);
  if (layout.total_steps <= 0) return fmt::format("{:>{}}", step, kMargin + 6);
  return fmt::format("{:>{}}/{}", step, kMargin + total.size(), total);
}

std::string step_line(const StepMetrics& metrics, const LineLayout& layout) {
  const std::string step = step_column(metrics.step, layout);
  auto fields = step_fields(metrics);
  leave_out_what_does_not_fit(fields, layout.width - display_width(step));
  std::string line = styled(step, Style::kBold, layout.color);
  for (const auto& field : fields) line += std::string(kFieldGap, ' ') + shown(field, layout.color);
  return line;
}

std::string eval_line(const EvalMetrics& metrics, const LineLayout& layout) {
  std::vector<Field> fields = {
      number_field("eval loss", metrics.eval_loss, loss_text(metrics.eval_loss), 6, 0),
      number_field("perplexity", metrics.eval_perplexity, short_number(metrics.eval_perplexity), 0, 0)};
  if (metrics.eval_mean_token_accuracy) {
    const double accuracy = *metrics.eval_mean_token_accuracy;
    fields.push_back(number_field("accuracy", accuracy, percent(accuracy), 0, 0));
  }
  if (metrics.seconds > 0) fields.push_back({"in", human_duration(metrics.seconds), 0, 0, false});
  std::string line = styled(step_column(metrics.step, layout), Style::kBold, layout.color);
  for (const auto& field : fields) line += std::string(kFieldGap, ' ') + shown(field, layout.color);
  if (metrics.is_best) line += std::string(kFieldGap, ' ') + styled("best so far", Style::kGreen, layout.color);
  return line;
}

}  // namespace hone
